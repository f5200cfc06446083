// Sixteen 32-bit lanes. Compiled with -mavx512f; called only after the processor was asked.
#include <immintrin.h>

#include "core/feistel_kernel.h"

namespace penstock {
namespace {

struct Lanes16 {
  static constexpr std::size_t lanes = 16;
  __m512i v;

  static Lanes16 splat(std::uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
  static Lanes16 count_up(std::uint32_t x) {
    return splat(x) + Lanes16{_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
  }
  static Lanes16 load(const std::uint32_t* p) { return {_mm512_loadu_si512(p)}; }
  friend Lanes16 operator+(Lanes16 x, Lanes16 y) { return {_mm512_add_epi32(x.v, y.v)}; }
  friend Lanes16 operator-(Lanes16 x, Lanes16 y) { return {_mm512_sub_epi32(x.v, y.v)}; }
  friend Lanes16 operator^(Lanes16 x, Lanes16 y) { return {_mm512_xor_si512(x.v, y.v)}; }
  friend Lanes16 operator*(Lanes16 x, Lanes16 y) { return {_mm512_mullo_epi32(x.v, y.v)}; }
  static Lanes16 high_half_down(Lanes16 x) { return {_mm512_srli_epi32(x.v, 16)}; }
  static Lanes16 scale(Lanes16 x, Lanes16 m) {
    const __m512i even = _mm512_mul_epu32(x.v, m.v);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x.v, 32), m.v);
    return {_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd)};
  }
  static Lanes16 min(Lanes16 x, Lanes16 y) { return {_mm512_min_epu32(x.v, y.v)}; }
  static Lanes16 wrapped(Lanes16 x, Lanes16 y) { return {_mm512_maskz_set1_epi32(_mm512_cmpeq_epi32_mask(x.v, y.v), -1)}; }
  static Lanes16 choose(Lanes16 mask, Lanes16 x, Lanes16 y) {
    return {_mm512_mask_blend_epi32(_mm512_test_epi32_mask(mask.v, mask.v), y.v, x.v)};
  }
  static bool store_index(Lanes16 left, Lanes16 right, std::uint64_t b, std::uint64_t n, std::int64_t* out) {
    const __m512i wide_b = _mm512_set1_epi64(static_cast<long long>(b));
    const __m512i low_word = _mm512_set1_epi64(0xFFFFFFFF);
    const __m512i even = _mm512_add_epi64(_mm512_mul_epu32(left.v, wide_b), _mm512_and_si512(right.v, low_word));
    const __m512i odd = _mm512_add_epi64(_mm512_mul_epu32(_mm512_srli_epi64(left.v, 32), wide_b), _mm512_srli_epi64(right.v, 32));
    const __m512i first_half = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    const __m512i second_half = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    _mm512_storeu_si512(out, _mm512_permutex2var_epi64(even, first_half, odd));
    _mm512_storeu_si512(out + 8, _mm512_permutex2var_epi64(even, second_half, odd));
    const __m512i last = _mm512_set1_epi64(static_cast<long long>(n - 1));
    return (_mm512_cmpgt_epi64_mask(even, last) | _mm512_cmpgt_epi64_mask(odd, last)) != 0;
  }
};

}  // namespace

const FeistelKernel& feistel_avx512() { return FeistelKernelOf<Lanes16>::kernel; }

}  // namespace penstock
