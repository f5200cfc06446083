// WebP by libwebp, lossy and lossless. Alpha is dropped; animations are refused.
#include <webp/decode.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "core/error.h"
#include "core/image_decode.h"
#include "core/little_endian.h"

namespace penstock {
namespace {

const char* words_of(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_OUT_OF_MEMORY: return "out of memory";
    case VP8_STATUS_UNSUPPORTED_FEATURE: return "an unsupported feature";
    case VP8_STATUS_SUSPENDED:
    case VP8_STATUS_NOT_ENOUGH_DATA: return "the file was cut";
    default: return "damaged data";
  }
}

void need(VP8StatusCode status) {
  if (status != VP8_STATUS_OK) throw ImageError(std::string("WebP: ") + words_of(status));
}

// The chunks of the container are walked for EXIF, which comes behind the pixels.
int orientation_of(std::span<const std::byte> data) {
  if (data.size() < 30 || std::memcmp(data.data() + 12, "VP8X", 4) != 0) return 1;
  constexpr std::byte kHasExif{0x08};
  if ((data[20] & kHasExif) == std::byte{}) return 1;
  for (std::size_t at = 12; data.size() - at > 8;) {
    const std::size_t size = load_le<std::uint32_t>(data.data() + at + 4);
    if (size > data.size() - at - 8) return 1;
    if (std::memcmp(data.data() + at, "EXIF", 4) == 0) {
      std::span<const std::byte> body = data.subspan(at + 8, size);
      if (body.size() > 6 && std::memcmp(body.data(), "Exif\0", 6) == 0) body = body.subspan(6);
      return exif_orientation(body);
    }
    at += 8 + size + size % 2;
    if (at > data.size()) return 1;
  }
  return 1;
}

class WebpDecoder final : public ImageDecoder {
 public:
  StoredImage open(std::span<const std::byte> encoded, std::uint64_t max_pixels) override {
    encoded_ = encoded;
    if (encoded.size() < 12 || load_le<std::uint32_t>(encoded.data() + 4) > encoded.size() - 8) {
      throw ImageError("WebP: the file was cut");
    }
    WebPBitstreamFeatures features;
    need(WebPGetFeatures(bytes(), encoded.size(), &features));
    if (features.has_animation != 0) throw ImageError("WebP: an animation, not a picture");
    width_ = static_cast<std::uint32_t>(features.width);
    height_ = static_cast<std::uint32_t>(features.height);
    check_image_size(width_, height_, max_pixels);
    lossless_ = features.format == 2;
    return {width_, height_, features.has_alpha != 0 ? 4U : 3U, orientation_of(encoded)};
  }

  std::uint32_t best_scale(std::uint32_t) const override { return 1; }

  void start(const DecodeWindow& window) override {
    if (window.numbers && !lossless_) throw ImageError("WebP: lossy; it does not keep the numbers of a mask");
    // Chroma is interpolated between neighbours: a margin makes the edges of the window those of the whole picture. Even, because
    // the library rounds it.
    const std::uint32_t left = (window.left - std::min(window.left, kMargin)) & ~1U;
    const std::uint32_t top = (window.top - std::min(window.top, kMargin)) & ~1U;
    const std::uint32_t right = std::min(width_, window.right + kMargin), bottom = std::min(height_, window.bottom + kMargin);
    WebPDecoderConfig config;
    if (WebPInitDecoderConfig(&config) == 0) throw ImageError("WebP: another version of libwebp than this was built for");
    config.options.use_cropping = 1;
    config.options.crop_left = static_cast<int>(left);
    config.options.crop_top = static_cast<int>(top);
    config.options.crop_width = static_cast<int>(right - left);
    config.options.crop_height = static_cast<int>(bottom - top);
    const std::size_t width = right - left, rows = bottom - top;
    std::uint8_t* grey = nullptr;
    std::uint8_t* colours = nullptr;
    if (window.channels == 3) {
      colours = place(top, rows, width * 3, (window.left - left) * 3);
    } else {
      colours = rgb_.take(width * rows * 3);
      grey = place(top, rows, width, window.left - left);
    }
    config.output.colorspace = MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = colours;
    config.output.u.RGBA.stride = static_cast<int>(width * 3);
    config.output.u.RGBA.size = width * rows * 3;
    const VP8StatusCode status = WebPDecode(bytes(), encoded_.size(), &config);
    WebPFreeDecBuffer(&config.output);
    need(status);
    if (window.numbers) {
      keep_numbers(colours, width * rows, grey);
    } else if (grey != nullptr) {
      rgb_to_grey(colours, width * rows, grey);
    }
  }

  void read(std::uint32_t) override {}  // start has read all
  void finish() override {}             // open has looked at the size

  void close() noexcept override {
    memory_.trim(kKept);
    rgb_.trim(kKept);
  }

 private:
  static constexpr std::uint32_t kMargin = 2;

  static void keep_numbers(const std::uint8_t* in, std::size_t count, std::uint8_t* out) {
    for (std::size_t i = 0; i < count; ++i, in += 3) {
      if (in[0] != in[1] || in[0] != in[2]) throw ImageError("WebP: colours; the numbers of a mask are grey values");
      out[i] = in[0];
    }
  }

  const std::uint8_t* bytes() const { return reinterpret_cast<const std::uint8_t*>(encoded_.data()); }

  std::span<const std::byte> encoded_;
  Scratch<std::uint8_t> rgb_;
  std::uint32_t width_ = 0, height_ = 0;
  bool lossless_ = false;
};

}  // namespace

ImageDecoder& webp_decoder() {
  thread_local WebpDecoder decoder;
  return decoder;
}

}  // namespace penstock
