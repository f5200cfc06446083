// The kernels of image_resize.h, in plain C++; each image_<level>.cpp replaces what its instructions do better, is compiled with
// the flags of its level, and must use nothing from the standard library that another file could link to.
#pragma once

#include <bit>
#include <cstring>

#include "core/image_resize.h"

namespace penstock {

const ImageKernel& image_plain();
const ImageKernel& image_avx2();
const ImageKernel& image_neon();

namespace {  // a copy per file, compiled for its level

inline constexpr std::int32_t kDownShift = kWeightBits - kRowBits;
inline constexpr std::int32_t kAcrossShift = kWeightBits + kRowBits;
inline constexpr std::int32_t kDownHalf = 1 << (kDownShift - 1);
inline constexpr std::int32_t kAcrossHalf = 1 << (kAcrossShift - 1);

inline std::uint16_t to_half_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000;
  const std::uint32_t magnitude = bits & 0x7FFF'FFFF;
  if (magnitude >= 0x4780'0000) {  // 65,536 and more, infinity, not a number
    const std::uint32_t payload = magnitude > 0x7F80'0000 ? 0x0200 | (magnitude >> 13 & 0x03FF) : 0;
    return static_cast<std::uint16_t>(sign | 0x7C00 | payload);
  }
  if (magnitude < 0x3880'0000) {  // below 2^-14: in units of 2^-24, which an addition of 1/2 rounds to
    const std::uint32_t sum = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F);
    return static_cast<std::uint16_t>(sign | (sum - 0x3F00'0000));
  }
  const std::uint32_t even = magnitude >> 13 & 1;
  return static_cast<std::uint16_t>(sign | (magnitude - 0x3800'0000 + 0x0FFF + even) >> 13);
}

struct PlainImage {
  static void down(const std::uint8_t* const* rows, const std::int16_t* weights, std::size_t taps, std::size_t count,
                   std::int16_t* out) {
    const bool narrow = taps <= kNarrowTaps;
    for (std::size_t i = 0; i < count; ++i) {
      std::int32_t sum = narrow ? static_cast<std::int32_t>(taps / 2) : kDownHalf;
      for (std::size_t k = 0; k < taps; ++k) sum += (rows[k][i] * weights[k]) >> (narrow ? kDownShift : 0);
      out[i] = static_cast<std::int16_t>(narrow ? sum : sum >> kDownShift);
    }
  }

  template <std::size_t kChannels>
  static void across(const std::int16_t* row, const std::uint32_t* first, const std::int16_t* weights, std::size_t taps,
                     std::size_t outputs, std::uint8_t* out) {
    for (std::size_t i = 0; i < outputs; ++i, weights += taps) {
      const std::int16_t* from = row + first[i];
      for (std::size_t c = 0; c < kChannels; ++c) {
        std::int32_t sum = kAcrossHalf;
        for (std::size_t k = 0; k < taps; ++k) sum += from[k * kChannels + c] * weights[k];
        *out++ = static_cast<std::uint8_t>(sum >> kAcrossShift);
      }
    }
  }

  static void split3(const std::uint8_t* in, std::size_t count, std::size_t plane, std::uint8_t* out) {
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t c = 0; c < 3; ++c) out[c * plane + i] = in[3 * i + c];
    }
  }

  static float affine_of(std::uint8_t value, const ImageAffine& affine, std::size_t i) {
    const float product = static_cast<float>(value) * affine.factor[i % 24];
    return product + affine.offset[i % 24];
  }

  static void to_float(const std::uint8_t* in, std::size_t count, const ImageAffine& affine, std::byte* out) {
    for (std::size_t i = 0; i < count; ++i) {
      const float value = affine_of(in[i], affine, i);
      std::memcpy(out + 4 * i, &value, 4);
    }
  }

  static void to_half(const std::uint8_t* in, std::size_t count, const ImageAffine& affine, std::byte* out) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint16_t value = to_half_bits(affine_of(in[i], affine, i));
      std::memcpy(out + 2 * i, &value, 2);
    }
  }
};

}  // namespace
}  // namespace penstock
