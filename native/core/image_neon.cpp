// The image kernels in NEON, which every arm64 processor has.
#include <arm_neon.h>

#include "core/image_kernel.h"

namespace penstock {
namespace {

// Twice the product of a byte << 7 and a weight, >> 16, is their product >> 8.
void narrow_down(const std::uint8_t* const* rows, const std::int16_t* weights, std::size_t taps, std::size_t count,
                 std::int16_t* out) {
  const int16x8_t half = vdupq_n_s16(static_cast<std::int16_t>(taps / 2));
  for (std::size_t i = 0; i < count; i += 16) {
    int16x8_t low = half, high = half;
    for (std::size_t k = 0; k < taps; ++k) {
      const uint8x16_t bytes = vld1q_u8(rows[k] + i);
      const int16x8_t weight = vdupq_n_s16(weights[k]);
      low = vaddq_s16(low, vqdmulhq_s16(vreinterpretq_s16_u16(vshll_n_u8(vget_low_u8(bytes), 7)), weight));
      high = vaddq_s16(high, vqdmulhq_s16(vreinterpretq_s16_u16(vshll_high_n_u8(bytes, 7)), weight));
    }
    vst1q_s16(out + i, low);
    vst1q_s16(out + i + 8, high);
  }
}

void wide_down(const std::uint8_t* const* rows, const std::int16_t* weights, std::size_t taps, std::size_t count,
               std::int16_t* out) {
  const int32x4_t half = vdupq_n_s32(kDownHalf);
  for (std::size_t i = 0; i < count; i += 16) {
    int32x4_t sum0 = half, sum1 = half, sum2 = half, sum3 = half;
    for (std::size_t k = 0; k < taps; ++k) {
      const uint8x16_t bytes = vld1q_u8(rows[k] + i);
      const int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes)));
      const int16x8_t high = vreinterpretq_s16_u16(vmovl_high_u8(bytes));
      const int16x8_t weight = vdupq_n_s16(weights[k]);
      sum0 = vmlal_s16(sum0, vget_low_s16(low), vget_low_s16(weight));
      sum1 = vmlal_high_s16(sum1, low, weight);
      sum2 = vmlal_s16(sum2, vget_low_s16(high), vget_low_s16(weight));
      sum3 = vmlal_high_s16(sum3, high, weight);
    }
    vst1q_s16(out + i, vshrn_high_n_s32(vshrn_n_s32(sum0, kDownShift), sum1, kDownShift));
    vst1q_s16(out + i + 8, vshrn_high_n_s32(vshrn_n_s32(sum2, kDownShift), sum3, kDownShift));
  }
}

void down(const std::uint8_t* const* rows, const std::int16_t* weights, std::size_t taps, std::size_t count, std::int16_t* out) {
  (taps <= kNarrowTaps ? narrow_down : wide_down)(rows, weights, taps, count, out);
}

// One pixel is three lanes of four; the fourth belongs to the next one.
inline int32x4_t pixel_of(const std::int16_t* from, const std::int16_t* weights, std::size_t taps) {
  int32x4_t sum = vdupq_n_s32(kAcrossHalf);
  for (std::size_t k = 0; k < taps; ++k) sum = vmlal_n_s16(sum, vld1_s16(from + 3 * k), weights[k]);
  return vshrq_n_s32(sum, kAcrossShift);
}

void across3(const std::int16_t* row, const std::uint32_t* first, const std::int16_t* weights, std::size_t taps,
             std::size_t outputs, std::uint8_t* out) {
  static constexpr std::uint8_t kKept[] = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 255, 255, 255, 255};
  const uint8x16_t kept = vld1q_u8(kKept);
  for (std::size_t i = 0; i < outputs; i += 4, first += 4, weights += 4 * taps, out += 12) {
    int32x4_t made[4];
    for (std::size_t j = 0; j < 4; ++j) made[j] = pixel_of(row + first[j], weights + j * taps, taps);
    const int16x8_t low = vcombine_s16(vmovn_s32(made[0]), vmovn_s32(made[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(made[2]), vmovn_s32(made[3]));
    vst1q_u8(out, vqtbl1q_u8(vcombine_u8(vqmovun_s16(low), vqmovun_s16(high)), kept));
  }
}

void split3(const std::uint8_t* in, std::size_t count, std::size_t plane, std::uint8_t* out) {
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const uint8x16x3_t pixels = vld3q_u8(in + 3 * i);
    for (std::size_t c = 0; c < 3; ++c) vst1q_u8(out + c * plane + i, pixels.val[c]);
  }
  PlainImage::split3(in + 3 * i, count - i, plane, out + i);
}

struct Floats8 {
  float32x4_t low, high;
};

inline Floats8 affine_of(const std::uint8_t* in, const ImageAffine& affine, std::size_t at) {
  const uint16x8_t words = vmovl_u8(vld1_u8(in));
  const float32x4_t low = vcvtq_f32_u32(vmovl_u16(vget_low_u16(words))), high = vcvtq_f32_u32(vmovl_high_u16(words));
  return {vaddq_f32(vmulq_f32(low, vld1q_f32(affine.factor + at)), vld1q_f32(affine.offset + at)),
          vaddq_f32(vmulq_f32(high, vld1q_f32(affine.factor + at + 4)), vld1q_f32(affine.offset + at + 4))};
}

void to_float(const std::uint8_t* in, std::size_t count, const ImageAffine& affine, std::byte* out) {
  std::size_t i = 0;
  for (; i + 24 <= count; i += 24) {
    for (std::size_t at = 0; at < 24; at += 8) {
      const Floats8 made = affine_of(in + i + at, affine, at);
      vst1q_u8(reinterpret_cast<std::uint8_t*>(out + 4 * (i + at)), vreinterpretq_u8_f32(made.low));
      vst1q_u8(reinterpret_cast<std::uint8_t*>(out + 4 * (i + at) + 16), vreinterpretq_u8_f32(made.high));
    }
  }
  PlainImage::to_float(in + i, count - i, affine, out + 4 * i);
}

void to_half(const std::uint8_t* in, std::size_t count, const ImageAffine& affine, std::byte* out) {
  std::size_t i = 0;
  for (; i + 24 <= count; i += 24) {
    for (std::size_t at = 0; at < 24; at += 8) {
      const Floats8 made = affine_of(in + i + at, affine, at);
      const uint16x8_t halves =
          vcombine_u16(vreinterpret_u16_f16(vcvt_f16_f32(made.low)), vreinterpret_u16_f16(vcvt_f16_f32(made.high)));
      vst1q_u8(reinterpret_cast<std::uint8_t*>(out + 2 * (i + at)), vreinterpretq_u8_u16(halves));
    }
  }
  PlainImage::to_half(in + i, count - i, affine, out + 2 * i);
}

}  // namespace

const ImageKernel& image_neon() {
  static constexpr ImageKernel kernel{down, nullptr, across3, PlainImage::across<1>, split3, to_float, to_half};
  return kernel;
}

}  // namespace penstock
