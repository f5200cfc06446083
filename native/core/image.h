// Encoded pictures (JPEG, PNG, WebP) into arrays of one size: crop, decode what the crop needs, resize, flip, normalise.
// docs/reference/images.md defines every step exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/image_box.h"
#include "core/image_resize.h"
#include "core/simd.h"

namespace penstock {

enum class ImageFormat { jpeg, png, webp };
enum class ImageCrop {
  none,    // the whole picture, whatever its ratio
  center,  // the central box with the ratio of the output, of `fraction` of the picture
  random,  // a random box
  pad      // the whole picture, as large as fits inside; around it `fill`
};
enum class ImageLayout { nchw, nhwc };
enum class ImageType { u1, f2, f4 };

inline constexpr std::uint64_t kDefaultMaxPixels = 178'956'970;

struct ImageSpec {
  std::uint32_t height = 224;
  std::uint32_t width = 224;
  ImageCrop crop = ImageCrop::random;
  double scale_low = 0.08, scale_high = 1.0;             // random: share of the area
  double ratio_low = 3.0 / 4.0, ratio_high = 4.0 / 3.0;  // random: width to height
  double fraction = 1.0;                                 // center
  double flip = 0.0;                                     // probability
  ImageLayout layout = ImageLayout::nhwc;
  ImageType type = ImageType::u1;
  std::uint32_t channels = 3;  // 3 (RGB) or 1 (grey)
  // A mask of class numbers: each is that of the nearest pixel, as it is stored. One channel of bytes.
  bool numbers = false;
  // Floats are value / 255, and with `normalise` (value / 255 - mean) / std.
  bool normalise = false;
  float mean[3] = {0, 0, 0};
  float std[3] = {1, 1, 1};
  std::uint8_t fill = 0;                         // pad: the value of all channels, before it is made a float
  std::uint64_t max_pixels = kDefaultMaxPixels;  // of a stored picture; larger ones are refused by their header
  std::uint32_t max_scale = 8;                   // JPEG may be decoded at 1/2, 1/4, 1/8 if the output is that small; 1: never
};

struct ImageInfo {
  ImageFormat format = ImageFormat::jpeg;
  std::uint32_t width = 0;  // as displayed
  std::uint32_t height = 0;
  std::uint32_t channels = 0;  // as stored: 1 grey, 2 grey and alpha, 3, 4
  int orientation = 1;         // of EXIF; width and height are after it
};

// Makes outputs of one specification. Immutable and safe to use from several threads; every thread keeps its own scratch memory.
class ImageMaker {
 public:
  // Throws std::invalid_argument.
  explicit ImageMaker(const ImageSpec& spec, Simd level = best_simd());

  const ImageSpec& spec() const { return spec_; }

  // Of one output.
  std::size_t bytes() const { return bytes_; }

  // Writes bytes() bytes to out, which needs no alignment. Throws ImageError; what was written is then arbitrary.
  // partner: another picture that must be displayed in the same size, so that its box with this seed is the same one.
  void make(std::span<const std::byte> encoded, std::uint64_t seed, std::byte* out,
            std::span<const std::byte> partner = {}) const;

  // The part of a picture of that displayed size that make takes.
  ImageBox box(std::uint32_t width, std::uint32_t height, std::uint64_t seed) const;

 private:
  ImageSpec spec_;
  std::size_t bytes_ = 0;
  RandomCrop random_;
  const ImageKernel* kernel_;
  ImageAffine affine_[3];  // nchw: of each plane; nhwc: the first
};

// Reads the header only. Throws ImageError.
ImageInfo probe_image(std::span<const std::byte> encoded, std::uint64_t max_pixels = kDefaultMaxPixels);

// Decodes, applies the orientation, resizes so that the longer side is at most max_side, and encodes as JPEG (4:2:0; grey stays
// grey). out is replaced. Throws ImageError.
void shrink_image(std::span<const std::byte> encoded, std::uint32_t max_side, int quality, std::vector<std::byte>& out,
                  std::uint64_t max_pixels = kDefaultMaxPixels);

}  // namespace penstock
