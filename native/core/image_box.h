// Which part of a picture becomes the output, from its size and a seed alone: docs/reference/images.md gives the arithmetic.
// Everything is IEEE double arithmetic with + - * / and sqrt, which round alike on every processor, and integers.
#pragma once

#include <cstdint>

namespace penstock {

// In pixels of the picture as it is displayed. x + width and y + height are at most its width and height.
struct ImageBox {
  std::uint32_t x = 0;
  std::uint32_t y = 0;
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  bool flip = false;  // mirrored left to right, after the crop

  friend bool operator==(const ImageBox&, const ImageBox&) = default;
};

// exp and log to about an ulp, without the C library, whose last bit is not the same everywhere. x of log is a positive normal
// number; |x| of exp is at most 700.
double image_exp(double x);
double image_log(double x);

// torchvision's RandomResizedCrop: 10 attempts at a share of the area in [scale_low, scale_high) and a log-uniform ratio of width
// to height in [ratio_low, ratio_high); if none fits, the largest central box whose ratio is in that range.
struct RandomCrop {
  RandomCrop(double scale_low, double scale_high, double ratio_low, double ratio_high);
  ImageBox box(std::uint32_t width, std::uint32_t height, std::uint64_t seed) const;

  double scale_low, scale_range, ratio_low, ratio_high, log_low, log_range;
};

// The central box with the ratio of the output, as large as fits, times the fraction.
ImageBox center_box(std::uint32_t width, std::uint32_t height, std::uint32_t out_width, std::uint32_t out_height,
                    double fraction);

// Whether a picture is mirrored: with that probability, whatever its size.
bool draw_flip(std::uint64_t seed, double probability);

// The largest size with the ratio of a picture that fits the output, and where it is: rounded to nearest, at least 1.
ImageBox fit_inside(std::uint32_t width, std::uint32_t height, std::uint32_t out_width, std::uint32_t out_height);

}  // namespace penstock
