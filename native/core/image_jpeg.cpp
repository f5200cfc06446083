// JPEG by libjpeg-turbo, versions 2.1 and 3. The library reports errors by longjmp; every call of it is made in guarded(),
// between whose setjmp and longjmp no C++ object with a destructor is made.
#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

// After cstdio, which it needs.
#include <jerror.h>
#include <jpeglib.h>

#include "core/error.h"
#include "core/image_decode.h"

namespace penstock {
namespace {

constexpr int kMaxScans = 100;  // of a progressive picture; encoders write about 10

struct Failure {
  jpeg_error_mgr manager;  // first: the library's pointer to it is one to this
  std::jmp_buf jump;
  char text[JMSG_LENGTH_MAX];
};

[[noreturn]] void fail(j_common_ptr info) {
  auto* failure = reinterpret_cast<Failure*>(info->err);
  failure->manager.format_message(info, failure->text);
  std::longjmp(failure->jump, 1);
}

// Warnings mean that pixels are not what was encoded, but for these.
void warn(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_ADOBE_XFORM:
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_JFIF_MAJOR:
    case JWRN_NOT_SEQUENTIAL: return;
    default: fail(info);
  }
}

void ignore(j_common_ptr) {}

jpeg_error_mgr* prepare(Failure& failure) {
  jpeg_std_error(&failure.manager);
  failure.manager.error_exit = fail;
  failure.manager.emit_message = warn;
  failure.manager.output_message = ignore;
  failure.text[0] = '\0';
  return &failure.manager;
}

template <class Call>
void guarded(Failure& failure, const Call& call) {
  if (setjmp(failure.jump) != 0) throw ImageError(std::string("JPEG: ") + failure.text);
  call();
}

void limit_scans(j_common_ptr info) {
  auto* decompress = reinterpret_cast<j_decompress_ptr>(info);
  if (decompress->input_scan_number <= kMaxScans) return;
  auto* failure = reinterpret_cast<Failure*>(info->err);
  std::snprintf(failure->text, sizeof failure->text, "more than %d scans", kMaxScans);
  std::longjmp(failure->jump, 1);
}

// The markers before the first scan are walked for the first EXIF segment.
int orientation_of(std::span<const std::byte> data) {
  const auto at = [&](std::size_t i) { return std::to_integer<unsigned>(data[i]); };
  for (std::size_t place = 2; place + 4 <= data.size();) {
    if (at(place) != 0xFF) return 1;
    const unsigned marker = at(place + 1);
    if (marker == 0xFF) {  // filling
      ++place;
      continue;
    }
    if (marker == 0xDA || marker == 0xD9) return 1;
    if (marker == 0x01 || (marker >= 0xD0 && marker <= 0xD8)) {  // without a length
      place += 2;
      continue;
    }
    const std::size_t length = at(place + 2) << 8 | at(place + 3);
    if (length < 2 || place + 2 + length > data.size()) return 1;
    const std::span<const std::byte> body = data.subspan(place + 4, length - 2);
    if (marker == 0xE1 && body.size() > 6 && std::memcmp(body.data(), "Exif\0", 6) == 0) return exif_orientation(body.subspan(6));
    place += 2 + length;
  }
  return 1;
}

class JpegDecoder final : public ImageDecoder {
 public:
  JpegDecoder() { info_.err = prepare(failure_); }
  ~JpegDecoder() override { close(); }

  StoredImage open(std::span<const std::byte> encoded, std::uint64_t max_pixels) override {
    encoded_ = encoded;
    // Made anew for every picture: tables would otherwise be left for the next one, which may have none of its own.
    opened_ = true;
    guarded(failure_, [this] {
      jpeg_create_decompress(&info_);
      info_.progress = &progress_;
      progress_.progress_monitor = limit_scans;
      jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(encoded_.data()), encoded_.size());
      jpeg_read_header(&info_, TRUE);
    });
    check_image_size(info_.image_width, info_.image_height, max_pixels);
    // Every block of 8 x 8 pixels takes at least a bit of a Huffman code.
    if (info_.arith_code == FALSE && std::uint64_t{info_.image_width} * info_.image_height / 512 > encoded.size()) {
      throw ImageError("JPEG: fewer bytes than a picture of that size can have; it was cut or is hostile");
    }
    return {info_.image_width, info_.image_height, static_cast<std::uint32_t>(info_.num_components), orientation_of(encoded)};
  }

  std::uint32_t best_scale(std::uint32_t most) const override { return most; }

  void start(const DecodeWindow& window) override {
    if (window.numbers) throw ImageError("JPEG: it does not keep the numbers of a mask; PNG or lossless WebP does");
    info_.scale_num = 1;
    info_.scale_denom = window.scale;
    info_.dct_method = JDCT_ISLOW;
    info_.do_block_smoothing = FALSE;  // would invent what an incomplete progressive picture does not have
    cmyk_ = info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK;
    inverted_ = info_.saw_Adobe_marker != FALSE;
    channels_ = window.channels;
    if (cmyk_) {
      info_.out_color_space = JCS_CMYK;
    } else {
      info_.out_color_space = window.channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
    }
    guarded(failure_, [this] { jpeg_start_decompress(&info_); });
    if (!has_all_scans()) throw ImageError("JPEG: scans are missing; the file was cut, or is a preview");
    if (info_.output_width != (info_.image_width + window.scale - 1) / window.scale ||
        info_.output_height != (info_.image_height + window.scale - 1) / window.scale) {
      throw ImageError("JPEG: a kind of picture that cannot be scaled");
    }
    // Chroma is interpolated between neighbours: a margin makes the edges of the window those of the whole picture.
    // Where chroma is sampled in an uncommon way, parts of a picture are not always what they are in the whole.
    const bool parts = samples_are_common();
    JDIMENSION left = parts ? window.left - std::min<std::uint32_t>(window.left, kMargin) : 0;
    JDIMENSION width = (parts ? std::min<std::uint32_t>(info_.output_width, window.right + kMargin) : info_.output_width) - left;
    const JDIMENSION top = parts ? window.top - std::min<std::uint32_t>(window.top, kMargin) : 0;
    guarded(failure_, [&] {
      if (width < info_.output_width) jpeg_crop_scanline(&info_, &left, &width);
      if (top > 0) jpeg_skip_scanlines(&info_, top);
    });
    row_bytes_ = std::size_t{info_.output_width} * channels_;
    first_ = place(top, window.bottom - top, row_bytes_, std::size_t{window.left - left} * channels_);
    next_ = top;
    last_ = window.bottom;
    top_ = top;
    if (cmyk_) ink_.take(std::size_t{info_.output_width} * 7);
  }

  void read(std::uint32_t bottom) override {
    if (next_ >= bottom) return;
    if (cmyk_) return read_ink(bottom);
    guarded(failure_, [this, bottom] {
      while (next_ < bottom) {
        JSAMPROW rows[kRows];
        const JDIMENSION count = std::min<JDIMENSION>(last_ - next_, kRows);
        for (JDIMENSION i = 0; i < count; ++i) rows[i] = first_ + (next_ - top_ + i) * row_bytes_;
        next_ += jpeg_read_scanlines(&info_, rows, count);
      }
    });
  }

  // What was not decoded was not looked at; but a file that was cut has no end marker.
  void finish() override {
    guarded(failure_, [this] {
      if (info_.output_scanline >= info_.output_height) jpeg_finish_decompress(&info_);
    });
    if (info_.output_scanline >= info_.output_height) return;
    if (info_.unread_marker == JPEG_EOI || jpeg_input_complete(&info_) != FALSE) return;
    const std::size_t left = info_.src->bytes_in_buffer;
    const std::span<const std::byte> rest = encoded_.subspan(encoded_.size() - std::min(left, encoded_.size()));
    for (std::size_t i = rest.size(); i >= 2; --i) {
      if (rest[i - 1] == std::byte{0xD9} && rest[i - 2] == std::byte{0xFF}) return;
    }
    throw ImageError("JPEG: no end marker; the file was cut");
  }

  void close() noexcept override {
    if (opened_) jpeg_destroy_decompress(&info_);  // never fails
    opened_ = false;
    memory_.trim(kKept);
    ink_.trim(kKept);
  }

 private:
  static constexpr JDIMENSION kMargin = 2;
  static constexpr JDIMENSION kRows = 16;

  bool samples_are_common() const {
    for (int i = 0; i < info_.num_components; ++i) {
      const jpeg_component_info& component = info_.comp_info[i];
      const bool across =
          info_.max_h_samp_factor == component.h_samp_factor || info_.max_h_samp_factor == 2 * component.h_samp_factor;
      const bool down =
          info_.max_v_samp_factor == component.v_samp_factor || info_.max_v_samp_factor == 2 * component.v_samp_factor;
      if (!across || !down) return false;
    }
    return info_.max_h_samp_factor <= 2 && info_.max_v_samp_factor <= 2;
  }

  // Pictures of several scans, which have all been read. A component that came in none has no table; a coefficient that is not
  // yet exact has bits that are still to come, one that was never sent -1.
  bool has_all_scans() const {
    if (jpeg_has_multiple_scans(const_cast<j_decompress_ptr>(&info_)) == FALSE) return true;
    for (int i = 0; i < info_.num_components; ++i) {
      if (info_.comp_info[i].quant_table == nullptr) return false;
      if (info_.coef_bits == nullptr) continue;  // sequential
      const int* const bits = info_.coef_bits[i];
      if (std::any_of(bits, bits + DCTSIZE2, [](int left) { return left != 0; })) return false;
    }
    return true;
  }

  void read_ink(std::uint32_t bottom) {
    const std::size_t width = info_.output_width;
    std::uint8_t* const ink = ink_.take(width * 7);
    for (; next_ < bottom; ++next_) {
      guarded(failure_, [&] {
        JSAMPROW row = ink;
        jpeg_read_scanlines(&info_, &row, 1);
      });
      std::uint8_t* const out = first_ + (next_ - top_) * row_bytes_;
      if (channels_ == 3) {
        cmyk_to_rgb(ink, width, inverted_, out);
      } else {
        cmyk_to_rgb(ink, width, inverted_, ink + 4 * width);
        rgb_to_grey(ink + 4 * width, width, out);
      }
    }
  }

  Failure failure_{};
  jpeg_decompress_struct info_{};
  jpeg_progress_mgr progress_{};
  std::span<const std::byte> encoded_;
  Scratch<std::uint8_t> ink_;
  std::uint8_t* first_ = nullptr;
  std::size_t row_bytes_ = 0;
  std::uint32_t channels_ = 3;
  JDIMENSION top_ = 0, next_ = 0, last_ = 0;
  bool opened_ = false, cmyk_ = false, inverted_ = false;
};

}  // namespace

ImageDecoder& jpeg_decoder() {
  thread_local JpegDecoder decoder;
  return decoder;
}

void cmyk_to_rgb(const std::uint8_t* in, std::size_t count, bool inverted, std::uint8_t* out) {
  const unsigned turned = inverted ? 0 : 255;
  for (std::size_t i = 0; i < count; ++i, in += 4, out += 3) {
    const unsigned light = in[3] ^ turned;
    for (std::size_t c = 0; c < 3; ++c) out[c] = static_cast<std::uint8_t>(((in[c] ^ turned) * light + 127) / 255);
  }
}

void rgb_to_grey(const std::uint8_t* in, std::size_t count, std::uint8_t* out) {
  for (std::size_t i = 0; i < count; ++i, in += 3) {
    out[i] = static_cast<std::uint8_t>((19595U * in[0] + 38470U * in[1] + 7471U * in[2] + 32768U) >> 16);
  }
}

void encode_jpeg(const std::uint8_t* pixels, std::uint32_t width, std::uint32_t height, std::uint32_t channels, int quality,
                 std::vector<std::byte>& out) {
  // The library owns its memory until the end, also if it fails.
  struct Encoder {
    Failure failure{};
    jpeg_compress_struct info{};
    unsigned char* buffer = nullptr;
    unsigned long size = 0;
    ~Encoder() {
      jpeg_destroy_compress(&info);
      std::free(buffer);
    }
  } encoder;
  encoder.info.err = prepare(encoder.failure);
  guarded(encoder.failure, [&] {
    jpeg_compress_struct* const info = &encoder.info;
    jpeg_create_compress(info);
    jpeg_mem_dest(info, &encoder.buffer, &encoder.size);
    info->image_width = width;
    info->image_height = height;
    info->input_components = static_cast<int>(channels);
    info->in_color_space = channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
    jpeg_set_defaults(info);  // 4:2:0
    jpeg_set_quality(info, quality, TRUE);
    info->optimize_coding = TRUE;
    jpeg_start_compress(info, TRUE);
    while (info->next_scanline < height) {
      JSAMPROW row = const_cast<std::uint8_t*>(pixels) + std::size_t{info->next_scanline} * width * channels;
      jpeg_write_scanlines(info, &row, 1);
    }
    jpeg_finish_compress(info);
  });
  const auto* bytes = reinterpret_cast<const std::byte*>(encoder.buffer);
  out.assign(bytes, bytes + encoder.size);
}

}  // namespace penstock
