// PNG by libpng. Alpha is dropped, as Pillow's convert("RGB") drops it; 16 bits are rounded to 8; gamma and profiles are ignored.
// The library reports errors by longjmp: see image_jpeg.cpp.
#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/image_decode.h"

namespace penstock {
namespace {

constexpr png_alloc_size_t kMaxChunk = 8 << 20;  // of what is not pixels

// Chunks that say nothing about pixels, and may be packed.
constexpr png_byte kIgnored[] = "iCCP\0iTXt\0sPLT\0tEXt\0zTXt";
constexpr int kNumIgnored = 5;

class PngDecoder final : public ImageDecoder {
 public:
  ~PngDecoder() override { close(); }

  StoredImage open(std::span<const std::byte> encoded, std::uint64_t max_pixels) override {
    encoded_ = encoded;
    next_byte_ = 0;
    text_[0] = '\0';
    guarded([this] {
      png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, fail, [](png_structp, png_const_charp) {});
      if (png_ == nullptr) return;
      info_ = png_create_info_struct(png_);
      if (info_ == nullptr) return;
      png_set_read_fn(png_, this, give);
      png_set_chunk_malloc_max(png_, kMaxChunk);
      png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, kIgnored, kNumIgnored);
      png_read_info(png_, info_);
    });
    if (png_ == nullptr || info_ == nullptr) throw std::bad_alloc();
    const std::uint32_t width = png_get_image_width(png_, info_), height = png_get_image_height(png_, info_);
    check_image_size(width, height, max_pixels);
    // Deflate makes at most 1,032 bytes of one.
    if (std::uint64_t{height} * png_get_rowbytes(png_, info_) / 1032 > encoded.size()) {
      throw ImageError("PNG: fewer bytes than a picture of that size can have; it was cut or is hostile");
    }
    const bool palette = png_get_color_type(png_, info_) == PNG_COLOR_TYPE_PALETTE;
    return {width, height, palette ? 3U : png_get_channels(png_, info_), orientation()};
  }

  std::uint32_t best_scale(std::uint32_t) const override { return 1; }

  void start(const DecodeWindow& window) override {
    guarded([&] {
      const int kind = png_get_color_type(png_, info_);
      if (png_get_bit_depth(png_, info_) == 16) png_set_scale_16(png_);
      if (kind == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
      if (kind == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png_);
      if ((kind & PNG_COLOR_MASK_COLOR) == 0 && window.channels == 3) png_set_gray_to_rgb(png_);
      png_set_strip_alpha(png_);
      passes_ = png_set_interlace_handling(png_);
      png_read_update_info(png_, info_);
    });
    width_ = png_get_image_width(png_, info_);
    channels_ = window.channels;
    decoded_ = png_get_channels(png_, info_);
    window_ = window;
    next_ = 0;
    const std::size_t row_bytes = png_get_rowbytes(png_, info_);
    if (row_bytes != width_ * decoded_ || (decoded_ != channels_ && decoded_ != 3))
      throw ImageError("PNG: an unknown kind of pixels");
    out_bytes_ = std::size_t{window.right - window.left} * channels_;
    out_ = place(window.top, window.bottom - window.top, out_bytes_, 0);
    if (passes_ == 1) {
      row_.take(row_bytes);
      return;
    }
    const std::size_t height = png_get_image_height(png_, info_);
    std::uint8_t* const all = row_.take(row_bytes * height);
    guarded([&] {
      for (int pass = 0; pass < passes_; ++pass) {
        for (std::size_t y = 0; y < height; ++y) png_read_row(png_, all + y * row_bytes, nullptr);
      }
    });
    for (; next_ < window.bottom; ++next_) keep(all + next_ * row_bytes);
  }

  void read(std::uint32_t bottom) override {
    for (; next_ < bottom; ++next_) {
      std::uint8_t* const row = row_.take(width_ * decoded_);
      guarded([&] { png_read_row(png_, row, nullptr); });
      keep(row);
    }
  }

  void finish() override {
    static constexpr char kEnd[] = "IEND";
    for (std::size_t i = encoded_.size(); i >= 4; --i) {
      if (std::memcmp(encoded_.data() + i - 4, kEnd, 4) == 0) return;
    }
    throw ImageError("PNG: no end chunk; the file was cut");
  }

  void close() noexcept override {
    if (png_ != nullptr) png_destroy_read_struct(&png_, &info_, nullptr);
    png_ = nullptr;
    info_ = nullptr;
    memory_.trim(kKept);
    row_.trim(kKept);
  }

 private:
  template <class Call>
  void guarded(const Call& call) {
    if (setjmp(jump_) != 0) throw ImageError(std::string("PNG: ") + text_);
    call();
  }

  [[noreturn]] static void fail(png_structp png, png_const_charp message) {
    auto* self = static_cast<PngDecoder*>(png_get_error_ptr(png));
    std::strncpy(self->text_, message, sizeof self->text_ - 1);
    std::longjmp(self->jump_, 1);
  }

  static void give(png_structp png, png_bytep out, std::size_t count) {
    auto* self = static_cast<PngDecoder*>(png_get_io_ptr(png));
    if (count > self->encoded_.size() - self->next_byte_) png_error(png, "the file was cut");
    std::memcpy(out, self->encoded_.data() + self->next_byte_, count);
    self->next_byte_ += count;
  }

  int orientation() const {
#ifdef PNG_eXIf_SUPPORTED
    png_uint_32 size = 0;
    png_bytep exif = nullptr;
    if (png_get_eXIf_1(png_, info_, &size, &exif) != 0) return exif_orientation({reinterpret_cast<const std::byte*>(exif), size});
#endif
    return 1;
  }

  // Of row next_: the columns of the window.
  void keep(const std::uint8_t* row) {
    if (next_ < window_.top) return;
    std::uint8_t* const to = out_ + (next_ - window_.top) * out_bytes_;
    if (decoded_ == channels_) {
      std::memcpy(to, row + std::size_t{window_.left} * channels_, out_bytes_);
    } else {
      rgb_to_grey(row + std::size_t{window_.left} * 3, window_.right - window_.left, to);
    }
  }

  std::jmp_buf jump_;
  char text_[200] = {};
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::span<const std::byte> encoded_;
  std::size_t next_byte_ = 0;
  Scratch<std::uint8_t> row_;
  DecodeWindow window_;
  std::uint8_t* out_ = nullptr;
  std::size_t out_bytes_ = 0, width_ = 0, decoded_ = 0, channels_ = 0;
  std::uint32_t next_ = 0;
  int passes_ = 1;
};

}  // namespace

ImageDecoder& png_decoder() {
  thread_local PngDecoder decoder;
  return decoder;
}

}  // namespace penstock
