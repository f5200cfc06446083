#include "core/image_resize.h"

#include <algorithm>

#include "core/image_kernel.h"

namespace penstock {
namespace {

// In units of 1 / (2 * out * scale) of a decoded pixel everything is an integer: the middle of pixel k is at (2k + 1) * out *
// scale, the middle of output i at 2 * start * out + (2i + 1) * length.
struct Triangle {
  explicit Triangle(const ResizeRange& r)
      : pixel(std::int64_t{r.out} * r.scale), support(2 * std::max<std::int64_t>(pixel, r.length)) {}

  std::int64_t weight(std::int64_t k, std::int64_t middle) const {
    const std::int64_t distance = (2 * k + 1) * pixel - middle;
    return support - (distance < 0 ? -distance : distance);
  }

  std::int64_t pixel;    // half a pixel
  std::int64_t support;  // how far the filter reaches to either side
};

}  // namespace

void ResizeAxis::plan(const ResizeRange& range, std::uint32_t channels) {
  const Triangle triangle(range);
  const std::int64_t low = range.first(), high = range.last();
  // An open interval of n pixels has the middles of at most ceil(n) pixels.
  const std::int64_t most = std::min(high - low, (triangle.support + triangle.pixel - 1) / triangle.pixel);
  taps_ = static_cast<std::size_t>(most + most % 2);
  const std::size_t padded = (range.out + kOutputStep - 1) / kOutputStep * kOutputStep;
  first_.assign(padded, 0);
  count_.assign(padded, 0);
  weights_.assign(padded * taps_, 0);
  std::int64_t from = low;
  for (std::uint32_t i = 0; i < range.out; ++i) {
    const std::int64_t middle = 2 * std::int64_t{range.start} * range.out + (2 * std::int64_t{i} + 1) * range.length;
    while (triangle.weight(from, middle) <= 0) ++from;
    std::int64_t to = from;
    std::int64_t total = 0;
    for (std::int64_t w; to < high && (w = triangle.weight(to, middle)) > 0; ++to) total += w;
    const std::size_t place = range.reversed ? range.out - 1 - i : i;
    first_[place] = static_cast<std::uint32_t>(from - low) * channels;
    count_[place] = static_cast<std::uint32_t>(to - from);
    // Rounded as a running sum, so that the weights of an output add up to 2^15 exactly.
    std::int64_t sum = 0, before = 0;
    for (std::int64_t k = from; k < to; ++k) {
      sum += triangle.weight(k, middle);
      const std::int64_t behind = k + 1 == to ? 1 << kWeightBits : ((sum << kWeightBits) + total / 2) / total;
      weights_[place * taps_ + static_cast<std::size_t>(k - from)] =
          static_cast<std::int16_t>(std::min(behind - before, kMostWeight));
      before = behind;
    }
  }
}

std::uint16_t half_of(float value) { return to_half_bits(value); }

const ImageKernel& image_kernel(Simd level) {
#if defined(__x86_64__)
  if ((level == Simd::avx2 || level == Simd::avx512) && has_half_instruction()) return image_avx2();
#elif defined(__aarch64__)
  if (level == Simd::neon) return image_neon();
#endif
  (void)level;
  return image_plain();
}

}  // namespace penstock
