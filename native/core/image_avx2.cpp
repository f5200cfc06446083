// The image kernels in AVX2 and F16C.
#include <immintrin.h>

#include "core/image_kernel.h"

namespace penstock {
namespace {

__m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
__m128i load_half(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
void store(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }

// Bytes as the upper halves of words: the upper half of their product with a weight is the product >> 8.
template <std::size_t kTaps>
void narrow_down(const std::uint8_t* const* rows, const std::int16_t* weights, std::size_t any_taps, std::size_t count,
                 std::int16_t* out) {
  const std::size_t taps = kTaps > 0 ? kTaps : any_taps;
  const __m256i zero = _mm256_setzero_si256();
  const __m256i half = _mm256_set1_epi16(static_cast<std::int16_t>(taps / 2));
  __m256i weight[kNarrowTaps];
  const std::uint8_t* row[kNarrowTaps];  // a copy: the compiler cannot know that `out` is not where `rows` are
  for (std::size_t k = 0; k < taps; ++k) weight[k] = _mm256_set1_epi16(weights[k]);
  for (std::size_t k = 0; k < taps; ++k) row[k] = rows[k];
  for (std::size_t i = 0; i < count; i += 32) {
    __m256i low = half, high = half;
    for (std::size_t k = 0; k < taps; ++k) {
      const __m256i bytes = load(row[k] + i);
      low = _mm256_add_epi16(low, _mm256_mulhi_epu16(_mm256_unpacklo_epi8(zero, bytes), weight[k]));
      high = _mm256_add_epi16(high, _mm256_mulhi_epu16(_mm256_unpackhi_epi8(zero, bytes), weight[k]));
    }
    store(out + i, _mm256_permute2x128_si256(low, high, 0x20));       // 0 ... 15
    store(out + i + 16, _mm256_permute2x128_si256(low, high, 0x31));  // 16 ... 31
  }
}

// Two rows at a time: their bytes are interleaved, so that one instruction multiplies a pair by its two weights and adds.
void wide_down(const std::uint8_t* const* rows, const std::int16_t* weights, std::size_t taps, std::size_t count,
               std::int16_t* out) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i half = _mm256_set1_epi32(kDownHalf);
  for (std::size_t i = 0; i < count; i += 32) {
    __m256i sum0 = half, sum1 = half, sum2 = half, sum3 = half;
    for (std::size_t k = 0; k < taps; k += 2) {
      std::int32_t pair;
      std::memcpy(&pair, weights + k, 4);
      const __m256i both = _mm256_set1_epi32(pair);
      const __m256i one = load(rows[k] + i);
      const __m256i other = load(rows[k + (k + 1 < taps)] + i);  // behind the last one its weight is 0
      const __m256i low = _mm256_unpacklo_epi8(one, other);
      const __m256i high = _mm256_unpackhi_epi8(one, other);
      sum0 = _mm256_add_epi32(sum0, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), both));
      sum1 = _mm256_add_epi32(sum1, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), both));
      sum2 = _mm256_add_epi32(sum2, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), both));
      sum3 = _mm256_add_epi32(sum3, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), both));
    }
    const __m256i a = _mm256_packs_epi32(_mm256_srai_epi32(sum0, kDownShift), _mm256_srai_epi32(sum1, kDownShift));
    const __m256i b = _mm256_packs_epi32(_mm256_srai_epi32(sum2, kDownShift), _mm256_srai_epi32(sum3, kDownShift));
    store(out + i, _mm256_permute2x128_si256(a, b, 0x20));       // 0 ... 15
    store(out + i + 16, _mm256_permute2x128_si256(a, b, 0x31));  // 16 ... 31
  }
}

void down(const std::uint8_t* const* rows, const std::int16_t* weights, std::size_t taps, std::size_t count, std::int16_t* out) {
  if (taps > kNarrowTaps) return wide_down(rows, weights, taps, count, out);
  switch (taps) {
    case 1: return narrow_down<1>(rows, weights, taps, count, out);
    case 2: return narrow_down<2>(rows, weights, taps, count, out);
    case 3: return narrow_down<3>(rows, weights, taps, count, out);
    case 4: return narrow_down<4>(rows, weights, taps, count, out);
    default: return narrow_down<0>(rows, weights, taps, count, out);
  }
}

// Outputs are made in pairs i and i + 4, one in each half of a register, two taps at a time: [w0 w1 w0 w1 ... | v0 v1 v0 v1 ...].
void arrange3(const std::int16_t* weights, std::size_t taps, std::size_t padded, std::int16_t* out) {
  for (std::size_t i = 0; i < padded; i += 8, weights += 8 * taps) {
    for (std::size_t j = 0; j < 4; ++j) {
      for (std::size_t k = 0; k < taps; k += 2, out += 16) {
        std::int32_t one, other;
        std::memcpy(&one, weights + j * taps + k, 4);
        std::memcpy(&other, weights + (j + 4) * taps + k, 4);
        store(out, _mm256_set_m128i(_mm_set1_epi32(other), _mm_set1_epi32(one)));
      }
    }
  }
}

[[gnu::always_inline]] inline __m256i pair_of(const std::int16_t* one, const std::int16_t* other, const std::int16_t* weights,
                                              std::size_t taps) {
  const __m256i colours =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1));  // RGBRGB -> RR GG BB
  __m256i sum = _mm256_set1_epi32(kAcrossHalf);
  for (std::size_t k = 0; k < taps; k += 2, one += 6, other += 6, weights += 16) {
    const __m256i pixels = _mm256_inserti128_si256(_mm256_castsi128_si256(load_half(one)), load_half(other), 1);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, colours), load(weights)));
  }
  return _mm256_srai_epi32(sum, kAcrossShift);
}

template <std::size_t kTaps>
void across3_of(const std::int16_t* row, const std::uint32_t* first, const std::int16_t* weights, std::size_t any_taps,
                std::size_t outputs, std::uint8_t* out) {
  const std::size_t taps = kTaps > 0 ? kTaps : any_taps;
  const __m256i kept = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
  const auto pair = [&](std::size_t j) { return pair_of(row + first[j], row + first[j + 4], weights + 8 * taps * j, taps); };
  for (std::size_t i = 0; i < outputs; i += 8, first += 8, weights += 32 * taps, out += 24) {
    const __m256i low = _mm256_packs_epi32(pair(0), pair(1));   // pixels 0 1 | 4 5
    const __m256i high = _mm256_packs_epi32(pair(2), pair(3));  // 2 3 | 6 7
    const __m256i made = _mm256_shuffle_epi8(_mm256_packus_epi16(low, high), kept);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(made));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 12), _mm256_extracti128_si256(made, 1));
  }
}

void across3(const std::int16_t* row, const std::uint32_t* first, const std::int16_t* weights, std::size_t taps,
             std::size_t outputs, std::uint8_t* out) {
  switch (taps) {
    case 2: return across3_of<2>(row, first, weights, taps, outputs, out);
    case 4: return across3_of<4>(row, first, weights, taps, outputs, out);
    case 6: return across3_of<6>(row, first, weights, taps, outputs, out);
    default: return across3_of<0>(row, first, weights, taps, outputs, out);
  }
}

void split3(const std::uint8_t* in, std::size_t count, std::size_t plane, std::uint8_t* out) {
  const auto mask = [](int start) {  // of 16 bytes at 3 * i + start
    alignas(16) signed char made[16];
    for (int i = 0; i < 16; ++i) {
      const int at = 3 * i + start;
      made[i] = static_cast<signed char>(at >= 0 && at < 16 ? at : -1);
    }
    return _mm_load_si128(reinterpret_cast<const __m128i*>(made));
  };
  __m128i masks[3][3];
  for (int c = 0; c < 3; ++c) {
    for (int part = 0; part < 3; ++part) masks[c][part] = mask(c - 16 * part);
  }
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m128i a = load_half(in + 3 * i), b = load_half(in + 3 * i + 16), c = load_half(in + 3 * i + 32);
    for (std::size_t channel = 0; channel < 3; ++channel) {
      const __m128i* const m = masks[channel];
      const __m128i made =
          _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(a, m[0]), _mm_shuffle_epi8(b, m[1])), _mm_shuffle_epi8(c, m[2]));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + channel * plane + i), made);
    }
  }
  PlainImage::split3(in + 3 * i, count - i, plane, out + i);
}

__m256 affine_of(const std::uint8_t* in, const ImageAffine& affine, std::size_t at) {
  const __m256 values = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(in))));
  return _mm256_add_ps(_mm256_mul_ps(values, _mm256_load_ps(affine.factor + at)), _mm256_load_ps(affine.offset + at));
}

void to_float(const std::uint8_t* in, std::size_t count, const ImageAffine& affine, std::byte* out) {
  std::size_t i = 0;
  for (; i + 24 <= count; i += 24) {
    for (std::size_t at = 0; at < 24; at += 8) {
      _mm256_storeu_ps(reinterpret_cast<float*>(out + 4 * (i + at)), affine_of(in + i + at, affine, at));
    }
  }
  PlainImage::to_float(in + i, count - i, affine, out + 4 * i);
}

void to_half(const std::uint8_t* in, std::size_t count, const ImageAffine& affine, std::byte* out) {
  std::size_t i = 0;
  for (; i + 24 <= count; i += 24) {
    for (std::size_t at = 0; at < 24; at += 8) {
      const __m128i made = _mm256_cvtps_ph(affine_of(in + i + at, affine, at), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * (i + at)), made);
    }
  }
  PlainImage::to_half(in + i, count - i, affine, out + 2 * i);
}

}  // namespace

const ImageKernel& image_avx2() {
  static constexpr ImageKernel kernel{down, arrange3, across3, PlainImage::across<1>, split3, to_float, to_half};
  return kernel;
}

}  // namespace penstock
