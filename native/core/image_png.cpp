// PNG by libpng. Alpha is dropped, as Pillow's convert("RGB") drops it; 16 bits are rounded to 8; gamma and profiles are ignored.
// The library reports errors by longjmp: see image_jpeg.cpp.
#include <libdeflate.h>
#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/image_decode.h"

namespace penstock {
namespace {

constexpr png_alloc_size_t kMaxChunk = 8 << 20;  // of what is not pixels

// Chunks that say nothing about pixels, and may be packed or claim a size that they do not have. EXIF is found by the walk.
constexpr png_byte kIgnored[] = "eXIf\0iCCP\0iTXt\0pCAL\0sCAL\0sPLT\0tEXt\0zTXt";
constexpr int kNumIgnored = 8;

std::uint32_t load_be(const std::byte* p) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | std::to_integer<std::uint32_t>(p[i]);
  return value;
}

struct Chunk {
  std::string_view name;
  std::span<const std::byte> body;
  std::span<const std::byte> summed;  // name and body
  std::uint32_t sum;

  void check() const {
    if (libdeflate_crc32(0, summed.data(), summed.size()) == sum) return;
    throw ImageError("PNG: " + std::string(name) + ": the bytes do not have their checksum");
  }
};

// Gives take every chunk that is there as a whole, until it returns true or the last one was seen. Whether IEND was reached.
template <class Take>
bool walk(std::span<const std::byte> file, const Take& take) {
  for (std::size_t at = 8; file.size() - at >= 8;) {
    const std::size_t size = load_be(file.data() + at);
    const std::string_view name(reinterpret_cast<const char*>(file.data()) + at + 4, 4);
    if (name == "IEND") return true;
    if (size + 12 > file.size() - at) return false;
    const std::byte* const end = file.data() + at + 8 + size;
    if (take(Chunk{name, file.subspan(at + 8, size), file.subspan(at + 4, size + 4), load_be(end)})) return false;
    at += size + 12;
  }
  return false;
}

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
    return {width, height, palette ? 3U : png_get_channels(png_, info_), orientation_of(encoded)};
  }

  std::uint32_t best_scale(std::uint32_t) const override { return 1; }

  // A crop may end before the checksum of the chunk in which its pixels are: all are looked at first, and only here.
  void start(const DecodeWindow& window) override {
    const bool ends = walk(encoded_, [](const Chunk& chunk) {
      if (chunk.name == "IDAT") chunk.check();
      return false;
    });
    if (!ends) throw ImageError("PNG: the file was cut");
    if (window.numbers) need_numbers();
    guarded([&] {
      png_set_crc_action(png_, PNG_CRC_QUIET_USE, PNG_CRC_DEFAULT);
      const int kind = png_get_color_type(png_, info_);
      if (window.numbers) {
        png_set_packing(png_);
      } else {
        if (png_get_bit_depth(png_, info_) == 16) png_set_scale_16(png_);
        if (kind == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
        if (kind == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png_);
        if ((kind & PNG_COLOR_MASK_COLOR) == 0 && window.channels == 3) png_set_gray_to_rgb(png_);
      }
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

  void finish() override {}  // start has looked at the whole file

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

  // EXIF may come before the pixels or behind them.
  static int orientation_of(std::span<const std::byte> file) {
    int found = 1;
    walk(file, [&](const Chunk& chunk) {
      if (chunk.name != "eXIf") return false;
      chunk.check();
      found = exif_orientation(chunk.body);
      return true;
    });
    return found;
  }

  void need_numbers() const {
    if (png_get_bit_depth(png_, info_) == 16) throw ImageError("PNG: 16 bits a pixel; the numbers of a mask are bytes");
    const int kind = png_get_color_type(png_, info_);
    if (kind == PNG_COLOR_TYPE_RGB || kind == PNG_COLOR_TYPE_RGB_ALPHA)
      throw ImageError("PNG: colours; the numbers of a mask are grey values or indices of a palette");
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
