// Decoders of encoded pictures, one per format, behind one interface: header first, then only the rows and columns that are asked
// for. image_jpeg.cpp, image_png.cpp and image_webp.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/image.h"
#include "core/image_resize.h"

namespace penstock {

// A picture as its file stores it: before the EXIF orientation.
struct StoredImage {
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  std::uint32_t channels = 0;  // as stored: 1 grey, 2 grey and alpha, 3, 4
  int orientation = 1;         // 1 to 8, as EXIF numbers them
};

// Pixels [left, right) x [top, bottom) of the picture at 1/scale.
struct DecodeWindow {
  std::uint32_t left = 0, top = 0, right = 0, bottom = 0;
  std::uint32_t scale = 1;
  std::uint32_t channels = 3;  // wanted: 3 (RGB) or 1 (grey)
  bool numbers = false;        // the numbers that are stored, of one channel: indices of a palette, bits that are not expanded
};

inline constexpr std::uint32_t kMaxImageSide = 65'535;

// Throws ImageError unless a picture of that size may be decoded.
void check_image_size(std::uint64_t width, std::uint64_t height, std::uint64_t max_pixels);

// EXIF data from the byte order mark on ("II" or "MM"): the orientation, 1 if there is none.
int exif_orientation(std::span<const std::byte> tiff);

// One picture at a time: open, start, read, close. Not thread-safe; every thread has its own. Bytes must stay until close.
class ImageDecoder {
 public:
  virtual ~ImageDecoder() = default;

  // Reads the header.
  virtual StoredImage open(std::span<const std::byte> encoded, std::uint64_t max_pixels) = 0;

  // The largest scale at which this picture can be decoded, at most that: 1, 2, 4 or 8.
  virtual std::uint32_t best_scale(std::uint32_t most) const = 0;

  virtual void start(const DecodeWindow& window) = 0;

  // Decodes rows until `bottom`, a row of the whole picture, is there.
  virtual void read(std::uint32_t bottom) = 0;

  // After the last row: whether the file ends as it should. Throws ImageError if it was cut.
  virtual void finish() = 0;

  // Frees what belongs to the picture, after an error too.
  virtual void close() noexcept = 0;

  // Pixel (left, y) of the window.
  const std::uint8_t* row(std::uint32_t y) const { return pixels_ + (y - first_row_) * stride_; }

 protected:
  // Room for rows [first_row, ...) of that many bytes, and for what kernels read behind the last one. `skip`: bytes before the
  // window in every row.
  std::uint8_t* place(std::uint32_t first_row, std::size_t rows, std::size_t row_bytes, std::size_t skip);
  static constexpr std::size_t kKept = 32 << 20;
  Scratch<std::uint8_t> memory_;

 private:
  const std::uint8_t* pixels_ = nullptr;
  std::size_t stride_ = 0;
  std::uint32_t first_row_ = 0;
};

// The decoder of this thread for a format.
ImageDecoder& jpeg_decoder();
ImageDecoder& png_decoder();
ImageDecoder& webp_decoder();

// Red, green and blue of an ink picture; inverted: as Adobe stores it, 255 is no ink.
void cmyk_to_rgb(const std::uint8_t* in, std::size_t count, bool inverted, std::uint8_t* out);

// Rec. 601 luma of RGB, as JPEG's own: (19595 R + 38470 G + 7471 B + 32768) >> 16.
void rgb_to_grey(const std::uint8_t* in, std::size_t count, std::uint8_t* out);

// Pixels of 1 or 3 channels as a baseline JPEG, 4:2:0.
void encode_jpeg(const std::uint8_t* pixels, std::uint32_t width, std::uint32_t height, std::uint32_t channels, int quality,
                 std::vector<std::byte>& out);

}  // namespace penstock
