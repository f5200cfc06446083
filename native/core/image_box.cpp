#include "core/image_box.h"

#include <algorithm>
#include <cmath>

#include "core/seed.h"

namespace penstock {
namespace {

constexpr double kLn2High = 0x1.62e42fefa3p-1;  // 41 bits of ln 2: its product with a small integer is exact
constexpr double kLn2Low = 0x1.3de6af278ece6p-42;
constexpr double kInverseLn2 = 0x1.71547652b82fep+0;
constexpr int kAttempts = 10;
constexpr std::uint64_t kFlipWord = 4 * kAttempts;

// Word j of a seed, as a number in [0, 1) of 53 bits.
double unit(std::uint64_t seed, std::uint64_t j) { return static_cast<double>(absorb(seed, j) >> 11) * 0x1p-53; }

// Word j of a seed, as an integer below n.
std::uint32_t below(std::uint64_t seed, std::uint64_t j, std::uint32_t n) {
  return static_cast<std::uint32_t>(static_cast<unsigned __int128>(absorb(seed, j)) * n >> 64);
}

double rounded(double x) { return std::floor(x + 0.5); }

}  // namespace

double image_exp(double x) {
  const double k = rounded(x * kInverseLn2);
  const double r = (x - k * kLn2High) - k * kLn2Low;
  double sum = 1.0;  // 1 + r (1 + r/2 (1 + r/3 (...)))
  for (int i = 14; i >= 1; --i) sum = 1.0 + sum * r / i;
  return std::ldexp(sum, static_cast<int>(k));
}

double image_log(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // in [1/2, 1)
  if (m < 0x1.6a09e667f3bcdp-1) {       // sqrt(1/2)
    m = m * 2.0;
    --exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double s2 = s * s;
  double sum = 0.0;  // 1 + s^2/3 + s^4/5 + ...
  for (int i = 25; i >= 1; i -= 2) sum = sum * s2 + 1.0 / i;
  return exponent * kLn2High + (exponent * kLn2Low + 2.0 * s * sum);
}

RandomCrop::RandomCrop(double scale_low, double scale_high, double ratio_low, double ratio_high)
    : scale_low(scale_low),
      scale_range(scale_high - scale_low),
      ratio_low(ratio_low),
      ratio_high(ratio_high),
      log_low(image_log(ratio_low)),
      log_range(image_log(ratio_high) - log_low) {}

ImageBox RandomCrop::box(std::uint32_t width, std::uint32_t height, std::uint64_t seed) const {
  const double area = static_cast<double>(width) * static_cast<double>(height);
  for (std::uint64_t attempt = 0; attempt < kAttempts; ++attempt) {
    const double target = area * (scale_low + unit(seed, 4 * attempt) * scale_range);
    const double ratio = image_exp(log_low + unit(seed, 4 * attempt + 1) * log_range);
    const double w = rounded(std::sqrt(target * ratio));
    const double h = rounded(std::sqrt(target / ratio));
    if (!(w >= 1.0 && w <= width && h >= 1.0 && h <= height)) continue;
    ImageBox box{0, 0, static_cast<std::uint32_t>(w), static_cast<std::uint32_t>(h)};
    box.y = below(seed, 4 * attempt + 2, height - box.height + 1);
    box.x = below(seed, 4 * attempt + 3, width - box.width + 1);
    return box;
  }
  ImageBox box{0, 0, width, height};
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  if (ratio < ratio_low) {
    box.height = static_cast<std::uint32_t>(std::clamp(rounded(width / ratio_low), 1.0, static_cast<double>(height)));
  } else if (ratio > ratio_high) {
    box.width = static_cast<std::uint32_t>(std::clamp(rounded(height * ratio_high), 1.0, static_cast<double>(width)));
  }
  box.x = (width - box.width) / 2;
  box.y = (height - box.height) / 2;
  return box;
}

ImageBox center_box(std::uint32_t width, std::uint32_t height, std::uint32_t out_width, std::uint32_t out_height,
                    double fraction) {
  const double across = static_cast<double>(width) / out_width;
  const double down = static_cast<double>(height) / out_height;
  const double unit = fraction * std::min(across, down);  // pixels of the picture per pixel of the output
  ImageBox box;
  box.width = static_cast<std::uint32_t>(std::clamp(rounded(unit * out_width), 1.0, static_cast<double>(width)));
  box.height = static_cast<std::uint32_t>(std::clamp(rounded(unit * out_height), 1.0, static_cast<double>(height)));
  box.x = (width - box.width) / 2;
  box.y = (height - box.height) / 2;
  return box;
}

bool draw_flip(std::uint64_t seed, double probability) { return unit(seed, kFlipWord) < probability; }

ImageBox fit_inside(std::uint32_t width, std::uint32_t height, std::uint32_t out_width, std::uint32_t out_height) {
  const auto share = [](std::uint64_t a, std::uint64_t b, std::uint64_t divisor) {  // a * b / divisor, to nearest
    return static_cast<std::uint32_t>(std::max<std::uint64_t>(1, (2 * a * b + divisor) / (2 * divisor)));
  };
  ImageBox box{0, 0, out_width, out_height};
  if (std::uint64_t{width} * out_height < std::uint64_t{height} * out_width) {
    box.width = std::min(out_width, share(width, out_height, height));
  } else {
    box.height = std::min(out_height, share(height, out_width, width));
  }
  box.x = (out_width - box.width) / 2;
  box.y = (out_height - box.height) / 2;
  return box;
}

}  // namespace penstock
