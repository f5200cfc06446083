// Eight 32-bit lanes. Compiled with -mavx2; called only after the processor was asked.
#include <immintrin.h>

#include "core/feistel_kernel.h"

namespace penstock {
namespace {

struct Lanes8 {
  static constexpr std::size_t lanes = 8;
  __m256i v;

  static Lanes8 splat(std::uint32_t x) { return {_mm256_set1_epi32(static_cast<int>(x))}; }
  static Lanes8 count_up(std::uint32_t x) { return splat(x) + Lanes8{_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)}; }
  static Lanes8 load(const std::uint32_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
  friend Lanes8 operator+(Lanes8 x, Lanes8 y) { return {_mm256_add_epi32(x.v, y.v)}; }
  friend Lanes8 operator-(Lanes8 x, Lanes8 y) { return {_mm256_sub_epi32(x.v, y.v)}; }
  friend Lanes8 operator^(Lanes8 x, Lanes8 y) { return {_mm256_xor_si256(x.v, y.v)}; }
  friend Lanes8 operator*(Lanes8 x, Lanes8 y) { return {_mm256_mullo_epi32(x.v, y.v)}; }
  static Lanes8 high_half_down(Lanes8 x) { return {_mm256_srli_epi32(x.v, 16)}; }
  static Lanes8 scale(Lanes8 x, Lanes8 m) {
    const __m256i even = _mm256_mul_epu32(x.v, m.v);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x.v, 32), m.v);
    return {_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA)};
  }
  static Lanes8 min(Lanes8 x, Lanes8 y) { return {_mm256_min_epu32(x.v, y.v)}; }
  static Lanes8 wrapped(Lanes8 x, Lanes8 y) { return {_mm256_cmpeq_epi32(x.v, y.v)}; }
  static Lanes8 choose(Lanes8 mask, Lanes8 x, Lanes8 y) { return {_mm256_blendv_epi8(y.v, x.v, mask.v)}; }
  static bool store_index(Lanes8 left, Lanes8 right, std::uint64_t b, std::uint64_t n, std::int64_t* out) {
    const __m256i wide_b = _mm256_set1_epi64x(static_cast<long long>(b));
    const __m256i low_word = _mm256_set1_epi64x(0xFFFFFFFF);
    const __m256i even = _mm256_add_epi64(_mm256_mul_epu32(left.v, wide_b), _mm256_and_si256(right.v, low_word));
    const __m256i odd = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(left.v, 32), wide_b), _mm256_srli_epi64(right.v, 32));
    const __m256i low = _mm256_unpacklo_epi64(even, odd);   // 0 1 4 5
    const __m256i high = _mm256_unpackhi_epi64(even, odd);  // 2 3 6 7
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 4), _mm256_permute2x128_si256(low, high, 0x31));
    const __m256i last = _mm256_set1_epi64x(static_cast<long long>(n - 1));
    const __m256i outside = _mm256_or_si256(_mm256_cmpgt_epi64(even, last), _mm256_cmpgt_epi64(odd, last));
    return !_mm256_testz_si256(outside, outside);
  }
};

}  // namespace

const FeistelKernel& feistel_avx2() { return FeistelKernelOf<Lanes8>::kernel; }

}  // namespace penstock
