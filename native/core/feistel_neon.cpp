// Four 32-bit lanes of NEON, which every arm64 processor has.
#include <arm_neon.h>

#include "core/feistel_kernel.h"

namespace penstock {
namespace {

struct Lanes4 {
  static constexpr std::size_t lanes = 4;
  uint32x4_t v;

  static Lanes4 splat(std::uint32_t x) { return {vdupq_n_u32(x)}; }
  static Lanes4 count_up(std::uint32_t x) {
    static constexpr std::uint32_t kSteps[] = {0, 1, 2, 3};
    return splat(x) + load(kSteps);
  }
  static Lanes4 load(const std::uint32_t* p) { return {vld1q_u32(p)}; }
  friend Lanes4 operator+(Lanes4 x, Lanes4 y) { return {vaddq_u32(x.v, y.v)}; }
  friend Lanes4 operator-(Lanes4 x, Lanes4 y) { return {vsubq_u32(x.v, y.v)}; }
  friend Lanes4 operator^(Lanes4 x, Lanes4 y) { return {veorq_u32(x.v, y.v)}; }
  friend Lanes4 operator*(Lanes4 x, Lanes4 y) { return {vmulq_u32(x.v, y.v)}; }
  static Lanes4 high_half_down(Lanes4 x) { return {vshrq_n_u32(x.v, 16)}; }
  static Lanes4 scale(Lanes4 x, Lanes4 m) {
    const uint64x2_t low = vmull_u32(vget_low_u32(x.v), vget_low_u32(m.v));
    const uint64x2_t high = vmull_high_u32(x.v, m.v);
    return {vuzp2q_u32(vreinterpretq_u32_u64(low), vreinterpretq_u32_u64(high))};  // the upper words of the four products
  }
  static Lanes4 min(Lanes4 x, Lanes4 y) { return {vminq_u32(x.v, y.v)}; }
  static Lanes4 wrapped(Lanes4 x, Lanes4 y) { return {vceqq_u32(x.v, y.v)}; }
  static Lanes4 choose(Lanes4 mask, Lanes4 x, Lanes4 y) { return {vbslq_u32(mask.v, x.v, y.v)}; }
  static bool store_index(Lanes4 left, Lanes4 right, std::uint64_t b, std::uint64_t n, std::int64_t* out) {
    const uint32x4_t narrow_b = vdupq_n_u32(static_cast<std::uint32_t>(b));
    const uint64x2_t low = vaddw_u32(vmull_u32(vget_low_u32(left.v), vget_low_u32(narrow_b)), vget_low_u32(right.v));
    const uint64x2_t high = vaddw_high_u32(vmull_high_u32(left.v, narrow_b), right.v);
    vst1q_s64(out, vreinterpretq_s64_u64(low));
    vst1q_s64(out + 2, vreinterpretq_s64_u64(high));
    const uint64x2_t limit = vdupq_n_u64(n);
    const uint64x2_t outside = vorrq_u64(vcgeq_u64(low, limit), vcgeq_u64(high, limit));
    return vmaxvq_u32(vreinterpretq_u32_u64(outside)) != 0;
  }
};

}  // namespace

const FeistelKernel& feistel_neon() { return FeistelKernelOf<Lanes4>::kernel; }

}  // namespace penstock
