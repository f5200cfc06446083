#include "core/image.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

// After cstdio, which it needs.
#include <jpeglib.h>

#include "check.h"
#include "core/error.h"
#include "core/image_decode.h"
#include "core/image_kernel.h"
#include "core/seed.h"

using namespace penstock;

namespace {

using Bytes = std::vector<std::byte>;
using Pixels = std::vector<std::uint8_t>;

class Random {
 public:
  explicit Random(std::uint64_t seed) : seed_(seed) {}
  std::uint32_t below(std::uint64_t n) { return static_cast<std::uint32_t>(absorb(seed_, count_++) % n); }

 private:
  std::uint64_t seed_, count_ = 0;
};

// Smooth, with edges and some noise, so that neighbours differ and an interpolation shows.
Pixels picture(std::uint32_t width, std::uint32_t height, std::uint32_t channels, std::uint64_t seed) {
  Random random(seed);
  Pixels made;
  for (std::uint32_t y = 0; y < height; ++y) {
    for (std::uint32_t x = 0; x < width; ++x) {
      for (std::uint32_t c = 0; c < channels; ++c) {
        const std::uint32_t edge = (x / 7 + y / 5 + c) % 3 == 0 ? 60 : 0;
        made.push_back(static_cast<std::uint8_t>((x * (c + 1) + y * (3 - c % 3)) % 180 + edge + random.below(12)));
      }
    }
  }
  return made;
}

struct JpegKind {
  int across = 2, down = 2;  // chroma
  bool progressive = false;
  unsigned restart = 0;
  J_COLOR_SPACE colours = JCS_RGB;
  J_COLOR_SPACE stored = JCS_UNKNOWN;  // the usual one
  int copies = 0;                      // of the last scan of a script
  bool apart = false;                  // a scan for every component
};

Bytes jpeg(const Pixels& pixels, std::uint32_t width, std::uint32_t height, const JpegKind& kind) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* buffer = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &buffer, &size);
  info.image_width = width;
  info.image_height = height;
  info.input_components = kind.colours == JCS_GRAYSCALE ? 1 : kind.colours == JCS_CMYK ? 4 : 3;
  info.in_color_space = kind.colours;
  jpeg_set_defaults(&info);
  if (kind.stored != JCS_UNKNOWN) jpeg_set_colorspace(&info, kind.stored);
  jpeg_set_quality(&info, 92, TRUE);
  info.comp_info[0].h_samp_factor = kind.across;
  info.comp_info[0].v_samp_factor = kind.down;
  if (info.num_components == 4) {
    info.comp_info[3].h_samp_factor = kind.across;
    info.comp_info[3].v_samp_factor = kind.down;
  }
  info.restart_interval = kind.restart;
  std::vector<jpeg_scan_info> script;
  if (kind.progressive) {
    jpeg_simple_progression(&info);
    if (kind.copies > 0) {  // DC, and then bit by bit a coefficient more
      script.push_back({1, {0}, 0, 0, 0, 0});
      for (int i = 0; i < kind.copies; ++i) {
        const int coefficient = 1 + i / 11;
        const int bit = 10 - i % 11;
        script.push_back({1, {0}, coefficient, coefficient, bit == 10 ? 0 : bit + 1, bit});
      }
      script.push_back({1, {0}, 1 + kind.copies / 11, 63, 0, 0});
      info.scan_info = script.data();
      info.num_scans = static_cast<int>(script.size());
    }
  }
  if (kind.apart) {
    for (int i = 0; i < info.num_components; ++i) script.push_back({1, {i}, 0, 63, 0, 0});
    info.scan_info = script.data();
    info.num_scans = static_cast<int>(script.size());
  }
  jpeg_start_compress(&info, TRUE);
  const std::size_t stride = std::size_t{width} * static_cast<std::size_t>(info.input_components);
  while (info.next_scanline < height) {
    JSAMPROW row = const_cast<std::uint8_t*>(pixels.data()) + info.next_scanline * stride;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  const auto* bytes = reinterpret_cast<const std::byte*>(buffer);
  Bytes made(bytes, bytes + size);
  std::free(buffer);
  return made;
}

Pixels decoded(const Bytes& data, const DecodeWindow& window) {
  ImageDecoder& decoder = jpeg_decoder();
  Pixels made;
  decoder.open(data, kDefaultMaxPixels);
  decoder.start(window);
  const std::size_t bytes = std::size_t{window.right - window.left} * window.channels;
  for (std::uint32_t y = window.top; y < window.bottom; ++y) {
    decoder.read(y + 1);
    made.insert(made.end(), decoder.row(y), decoder.row(y) + bytes);
  }
  decoder.finish();
  decoder.close();
  return made;
}

void test_windows_equal_the_whole_decode() {
  Random random(1);
  constexpr std::uint32_t width = 203, height = 157;
  const Pixels colours = picture(width, height, 3, 5);
  const Pixels grey = picture(width, height, 1, 6);
  std::vector<JpegKind> kinds;
  for (const auto& [across, down] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {4, 2}}) {
    kinds.push_back({across, down, false, 0});
    kinds.push_back({across, down, true, 0});
    kinds.push_back({across, down, false, 7});
  }
  kinds.push_back({1, 1, false, 0, JCS_GRAYSCALE});
  for (const JpegKind& kind : kinds) {
    const Bytes data = jpeg(kind.colours == JCS_GRAYSCALE ? grey : colours, width, height, kind);
    for (const std::uint32_t scale : {1U, 2U, 4U, 8U}) {
      for (const std::uint32_t channels : {3U, 1U}) {
        const std::uint32_t across = (width + scale - 1) / scale, down = (height + scale - 1) / scale;
        const Pixels whole = decoded(data, {0, 0, across, down, scale, channels});
        for (int i = 0; i < 12; ++i) {
          DecodeWindow window{random.below(across), random.below(down), 0, 0, scale, channels};
          window.right = window.left + 1 + random.below(across - window.left);
          window.bottom = window.top + 1 + random.below(down - window.top);
          const Pixels part = decoded(data, window);
          const std::size_t bytes = std::size_t{window.right - window.left} * channels;
          for (std::uint32_t y = window.top; y < window.bottom; ++y) {
            const std::size_t at = (std::size_t{y} * across + window.left) * channels;
            const bool same = std::equal(part.begin() + static_cast<std::ptrdiff_t>((y - window.top) * bytes),
                                         part.begin() + static_cast<std::ptrdiff_t>((y - window.top + 1) * bytes),
                                         whole.begin() + static_cast<std::ptrdiff_t>(at));
            check(same, say("chroma ", kind.across, "x", kind.down, kind.progressive ? " progressive" : "", ", restart ",
                            kind.restart, ", scale ", scale, ", channels ", channels, ", window ", window.left, " ", window.top,
                            " ", window.right, " ", window.bottom, ", row ", y));
            if (!same) break;
          }
        }
      }
    }
  }
}

void test_kernels_are_bit_equal_at_every_level() {
  Random random(2);
  const ImageKernel& plain = image_plain();
  for (const Simd level : available_simd()) {
    const ImageKernel& kernel = image_kernel(level);
    for (int i = 0; i < 60; ++i) {
      // A picture of `count` pixels to `out`, with margins of whatever memory holds.
      const std::uint32_t count = 1 + random.below(i % 3 == 0 ? 300 : 90), out = 1 + random.below(80);
      const std::uint32_t scale = 1U << random.below(4);
      ResizeRange range{random.below(40), count * scale, scale, out, random.below(2) == 1};
      ResizeAxis axis;
      axis.plan(range);
      for (std::uint32_t o = 0; o < out; ++o) {
        std::int32_t sum = 0;
        for (std::size_t k = 0; k < axis.taps(); ++k) sum += axis.weights(o)[k];
        check_equal(sum, (1 << kWeightBits) - (axis.count(o) == 1 ? 1 : 0), "sum of weights");
        check(axis.first(o) + axis.count(o) <= range.last() - range.first(), "taps inside the box");
      }
      // Down: as many rows as an output has taps.
      const std::size_t elements = 1 + random.below(200);
      std::vector<Pixels> rows;
      std::vector<const std::uint8_t*> pointers;
      for (std::uint32_t k = 0; k < axis.count(0); ++k) {
        Pixels row(elements + kRowPadding);
        for (std::uint8_t& one : row) one = static_cast<std::uint8_t>(i % 4 == 0 ? 255 : random.below(256));
        rows.push_back(row);
      }
      for (const Pixels& row : rows) pointers.push_back(row.data());
      std::vector<std::int16_t> sums[2];
      for (const bool vector : {false, true}) {
        sums[vector].assign(elements + 64, 0);
        (vector ? kernel : plain).down(pointers.data(), axis.weights(0), axis.count(0), elements, sums[vector].data());
        sums[vector].resize(elements);
      }
      check_equal(sums[1], sums[0], "down");
      // Across, of 3 channels and of 1.
      for (const std::size_t channels : {std::size_t{3}, std::size_t{1}}) {
        axis.plan(range, static_cast<std::uint32_t>(channels));
        std::vector<std::int16_t> row(((range.last() - range.first()) + axis.taps()) * channels + kRowPadding);
        for (std::int16_t& one : row)
          one = static_cast<std::int16_t>(i % 4 == 0 ? 255 << kRowBits : random.below(256 << kRowBits));
        Pixels made[2];
        for (const bool vector : {false, true}) {
          const ImageKernel& chosen = vector ? kernel : plain;
          std::vector<std::int16_t> arranged(axis.all_weights(), axis.all_weights() + axis.padded() * axis.taps());
          if (channels == 3 && chosen.arrange3 != nullptr) {
            arranged.resize(4 * axis.taps() * axis.padded());
            chosen.arrange3(axis.all_weights(), axis.taps(), axis.padded(), arranged.data());
          }
          made[vector].resize(out * channels + kOutputSlack);
          const auto across = channels == 3 ? chosen.across3 : chosen.across1;
          across(row.data(), axis.all_first(), arranged.data(), axis.taps(), out, made[vector].data());
          made[vector].resize(out * channels);
        }
        check(made[0] == made[1], say("across ", channels, " channels, ", axis.taps(), " taps"));
      }
      // Planes and floats, exactly as long as they are.
      const std::size_t pixels = random.below(70);
      Pixels in(3 * pixels);
      for (std::uint8_t& one : in) one = static_cast<std::uint8_t>(random.below(256));
      ImageAffine affine;
      for (std::size_t k = 0; k < 24; ++k) {
        affine.factor[k] = (1.0F + static_cast<float>(random.below(1000))) * (i % 5 == 0 ? 1e-9F : i % 5 == 1 ? 1.0F : 3e-4F);
        affine.offset[k] = (static_cast<float>(random.below(1000)) - 500.0F) * (i % 5 == 0 ? 1e-8F : 4e-3F);
      }
      Pixels planes[2];
      std::vector<std::byte> floats[2], halves[2];
      for (const bool vector : {false, true}) {
        const ImageKernel& chosen = vector ? kernel : plain;
        planes[vector].assign(3 * pixels + 5, 77);
        chosen.split3(in.data(), pixels, pixels + 2, planes[vector].data());
        floats[vector].assign(12 * pixels + 1, std::byte{9});
        chosen.to_float(in.data(), 3 * pixels, affine, floats[vector].data());
        halves[vector].assign(6 * pixels + 1, std::byte{9});
        chosen.to_half(in.data(), 3 * pixels, affine, halves[vector].data());
      }
      check(planes[0] == planes[1], "planes");
      check(floats[0] == floats[1], "floats");
      check(halves[0] == halves[1], "halves");
    }
  }
}

void test_halves_round_to_nearest_even() {
  const std::pair<float, unsigned> known[] = {
      {0.0F, 0x0000},       {-0.0F, 0x8000},      {1.0F, 0x3C00},        {-2.0F, 0xC000},        {65504.0F, 0x7BFF},
      {65519.0F, 0x7BFF},   {65520.0F, 0x7C00},   {1e9F, 0x7C00},        {0x1p-24F, 0x0001},     {0x1p-25F, 0x0000},
      {0x1.8p-25F, 0x0001}, {0x1.8p-24F, 0x0002}, {0x1p-14F, 0x0400},    {0x1.FF8p-15F, 0x03FF}, {0x1.FFCp-15F, 0x0400},
      {0x1.002p0F, 0x3C00}, {0x1.006p0F, 0x3C02}, {-0x1.0021p0F, 0xBC01}};
  for (const auto& [value, bits] : known) check_equal<unsigned>(half_of(value), bits, say("half of ", value));
}

ImageSpec whole(std::uint32_t width, std::uint32_t height) {
  ImageSpec spec;
  spec.width = width;
  spec.height = height;
  spec.crop = ImageCrop::none;
  return spec;
}

Pixels made(const ImageSpec& spec, const Bytes& data, std::uint64_t seed = 0, Simd level = best_simd()) {
  const ImageMaker maker(spec, level);
  Bytes out(maker.bytes());
  maker.make(data, seed, out.data());
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(out.data());
  return {bytes, bytes + out.size()};
}

// An EXIF segment behind the start marker, in either byte order.
Bytes oriented(const Bytes& data, int orientation, bool big) {
  const auto o = static_cast<unsigned char>(orientation);
  const std::vector<unsigned char> little{0xFF, 0xE1, 0,    34, 'E', 'x', 'i', 'f', 0, 0, 'I', 'I', 42, 0, 8, 0, 0, 0,
                                          1,    0,    0x12, 1,  3,   0,   1,   0,   0, 0, o,   0,   0,  0, 0, 0, 0, 0};
  const std::vector<unsigned char> other{0xFF, 0xE1, 0, 34,   'E', 'x', 'i', 'f', 0, 0, 'M', 'M', 0, 42, 0, 0, 0, 8,
                                         0,    1,    1, 0x12, 0,   3,   0,   0,   0, 1, 0,   o,   0, 0,  0, 0, 0, 0};
  Bytes all(data.begin(), data.begin() + 2);
  for (const unsigned char one : big ? other : little) all.push_back(std::byte{one});
  all.insert(all.end(), data.begin() + 2, data.end());
  return all;
}

void test_orientation_is_applied() {
  constexpr std::uint32_t width = 41, height = 26;
  const Bytes data = jpeg(picture(width, height, 3, 7), width, height, {});
  const Pixels upright = made(whole(width, height), data);
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const bool turned = orientation >= 5;
    const std::uint32_t w = turned ? height : width, h = turned ? width : height;
    const Bytes other = oriented(data, orientation, orientation % 2 == 0);
    const ImageInfo info = probe_image(other);
    check_equal(info.orientation, orientation);
    check_equal(info.width, w);
    const Pixels found = made(whole(w, h), other);
    bool same = true;
    for (std::uint32_t y = 0; y < h; ++y) {
      for (std::uint32_t x = 0; x < w; ++x) {
        const std::uint32_t left = turned ? y : x, top = turned ? x : y;
        const bool from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
        const bool from_below = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
        const std::uint32_t u = from_right ? width - 1 - left : left, v = from_below ? height - 1 - top : top;
        for (std::uint32_t c = 0; c < 3; ++c) same &= found[(y * w + x) * 3 + c] == upright[(v * width + u) * 3 + c];
      }
    }
    check(same, say("orientation ", orientation));
  }
  check_equal(probe_image(oriented(data, 9, true)).orientation, 1, "an orientation that does not exist");
}

void test_layouts_types_and_levels_agree() {
  const Bytes data = jpeg(picture(300, 200, 3, 8), 300, 200, {});
  for (const ImageCrop crop : {ImageCrop::none, ImageCrop::center, ImageCrop::random, ImageCrop::pad}) {
    for (const std::uint32_t channels : {3U, 1U}) {
      ImageSpec spec;
      spec.width = 61;
      spec.height = 47;
      spec.crop = crop;
      spec.channels = channels;
      spec.flip = 0.5;
      spec.fraction = 0.875;
      spec.fill = 9;
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        spec.normalise = false;
        spec.layout = ImageLayout::nhwc;
        spec.type = ImageType::u1;
        const Pixels bytes = made(spec, data, seed);
        for (const ImageLayout layout : {ImageLayout::nhwc, ImageLayout::nchw}) {
          for (const ImageType type : {ImageType::u1, ImageType::f2, ImageType::f4}) {
            spec.layout = layout;
            spec.type = type;
            spec.normalise = true;
            for (std::size_t c = 0; c < 3; ++c) {
              spec.mean[c] = 0.4F + 0.05F * static_cast<float>(c);
              spec.std[c] = 0.2F + 0.02F * static_cast<float>(c);
            }
            const Pixels found = made(spec, data, seed);
            for (const Simd level : available_simd()) check(made(spec, data, seed, level) == found, "the same at every level");
            Pixels expected;
            const std::size_t pixels = std::size_t{spec.width} * spec.height;
            for (std::size_t i = 0; i < pixels * channels; ++i) {
              const std::size_t c = layout == ImageLayout::nhwc ? i % channels : i / pixels;
              const std::uint8_t value = layout == ImageLayout::nhwc ? bytes[i] : bytes[i % pixels * channels + c];
              const auto factor = static_cast<float>(1.0 / (255.0 * spec.std[c]));
              const auto offset = static_cast<float>(-(double{spec.mean[c]} / spec.std[c]));
              volatile float product = static_cast<float>(value) * factor;  // rounded before the addition
              const float number = product + offset;
              const std::uint16_t half = half_of(number);
              const void* from = type == ImageType::u1   ? static_cast<const void*>(&value)
                                 : type == ImageType::f2 ? static_cast<const void*>(&half)
                                                         : static_cast<const void*>(&number);
              const std::size_t size = type == ImageType::u1 ? 1 : type == ImageType::f2 ? 2 : 4;
              expected.insert(expected.end(), static_cast<const std::uint8_t*>(from),
                              static_cast<const std::uint8_t*>(from) + size);
            }
            check(found == expected, "the bytes, in another layout and type");
          }
        }
      }
    }
  }
}

void test_boxes_are_what_they_always_were() {
  ImageSpec spec;
  spec.flip = 0.5;
  const ImageMaker maker(spec);
  check(maker.box(500, 375, 0) == ImageBox{82, 49, 289, 309, true}, "the box of seed 0");
  check(maker.box(500, 375, 1) == ImageBox{74, 8, 375, 301, true}, "the box of seed 1");
  check(maker.box(2, 900, 7) == ImageBox{0, 448, 2, 3, true}, "the box of a narrow picture");
  check(center_box(500, 375, 224, 224, 0.875) == ImageBox{86, 23, 328, 328, false}, "the central box");
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const auto width = static_cast<std::uint32_t>(1 + absorb(seed, 1) % 900),
               height = static_cast<std::uint32_t>(1 + absorb(seed, 2) % 900);
    const ImageBox box = maker.box(width, height, seed);
    check(box.width >= 1 && box.height >= 1 && box.x + box.width <= width && box.y + box.height <= height, "a box inside");
  }
  check_throws<std::invalid_argument>([&] { (void)maker.box(0, 5, 1); });
  for (double x = -30; x < 30; x += 0.37) {
    check(std::abs(image_exp(x) / std::exp(x) - 1) < 1e-15, "exp");
    check(std::abs(image_log(std::exp(x)) - x) < 1e-14, "log");
  }
}

void test_damaged_pictures_are_refused() {
  constexpr std::uint32_t width = 120, height = 90;
  const Pixels pixels = picture(width, height, 3, 9);
  ImageSpec top;  // needs the first rows only
  top.width = top.height = 16;
  top.scale_low = top.scale_high = 0.05;
  for (const bool progressive : {false, true}) {
    const Bytes data = jpeg(pixels, width, height, {2, 2, progressive});
    for (std::size_t size = 0; size < data.size(); size += 1 + size / 9) {
      const Bytes cut(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(size));
      check_throws<ImageError>([&] { (void)made(top, cut, size); });
    }
    check_throws<ImageError>([&] { (void)made(top, Bytes(data.begin(), data.end() - 2)); });
    Bytes longer = data;
    longer.resize(longer.size() + 100);
    (void)made(top, longer);  // what is behind the end does not matter
  }
  const Bytes none;
  check_throws<ImageError>([&] { (void)probe_image(none); });
  check_throws<ImageError>([&] { (void)probe_image(Bytes(100)); });
  ImageSpec small = whole(8, 8);
  small.max_pixels = width * height - 1;
  check_throws<ImageError>([&] { (void)made(small, jpeg(pixels, width, height, {})); });
  small.max_pixels = width * height;
  (void)made(small, jpeg(pixels, width, height, {}));
}

void test_a_bomb_of_scans_is_refused() {
  const Pixels pixels = picture(64, 64, 1, 10);
  JpegKind kind{1, 1, true, 0, JCS_GRAYSCALE};
  kind.copies = 66;
  (void)made(whole(8, 8), jpeg(pixels, 64, 64, kind));
  kind.copies = 165;
  check_throws<ImageError>([&] { (void)made(whole(8, 8), jpeg(pixels, 64, 64, kind)); });
}

// Scans that are missing leave pixels that were never encoded, whatever marks the end of the file.
void test_pictures_without_some_of_their_scans_are_refused() {
  constexpr std::byte kMark{0xFF}, kScan{0xDA};
  for (const bool progressive : {false, true}) {
    JpegKind kind{2, 2, progressive};
    kind.apart = !progressive;
    const Bytes data = jpeg(picture(64, 48, 3, 13), 64, 48, kind);
    (void)made(whole(8, 8), data);
    std::size_t scans = 0;
    for (std::size_t i = 0; i + 1 < data.size(); ++i) {
      if (data[i] != kMark || data[i + 1] != kScan || ++scans == 1) continue;
      Bytes cut(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(i));
      cut.insert(cut.end(), {kMark, std::byte{0xD9}});
      check_throws<ImageError>([&] { (void)made(whole(8, 8), cut); });
      check_throws<ImageError>([&] { (void)made(whole(48, 64), cut); });
    }
    check(scans >= 3, "several scans");
  }
}

void test_a_bomb_of_size_is_refused_by_its_header() {
  Bytes data = jpeg(picture(64, 64, 3, 11), 64, 64, {});
  for (std::size_t i = 0; i + 9 < data.size(); ++i) {
    if (data[i] != std::byte{0xFF} || data[i + 1] != std::byte{0xC0}) continue;
    for (std::size_t k = 5; k < 9; ++k) data[i + k] = std::byte{0x2F};
    break;
  }
  check_throws<ImageError>([&] { (void)probe_image(data); });
}

// Tables belong to one picture: one without any is refused, whatever was decoded before it.
void test_nothing_is_left_for_the_next_picture() {
  const Bytes data = jpeg(picture(64, 64, 3, 12), 64, 64, {});
  Bytes bare;
  for (std::size_t i = 0; i < data.size();) {  // without its quantization tables
    const bool table = i + 3 < data.size() && data[i] == std::byte{0xFF} && data[i + 1] == std::byte{0xDB};
    if (table) {
      i += 2 + (std::to_integer<std::size_t>(data[i + 2]) << 8 | std::to_integer<std::size_t>(data[i + 3]));
    } else {
      bare.push_back(data[i++]);
    }
  }
  check_throws<ImageError>([&] { (void)made(whole(8, 8), bare); });
  (void)made(whole(8, 8), data);
  check_throws<ImageError>([&] { (void)made(whole(8, 8), bare); });
}

void test_ink_becomes_light() {
  constexpr std::uint32_t side = 16;
  Pixels ink;
  for (std::uint32_t i = 0; i < side * side; ++i) ink.insert(ink.end(), {200, 100, 250, 128});
  const Pixels found = made(whole(8, 8), jpeg(ink, side, side, {1, 1, false, 0, JCS_CMYK}));  // with an Adobe marker
  const int expected[] = {200 * 128 / 255, 100 * 128 / 255, 250 * 128 / 255};
  for (std::size_t i = 0; i < found.size(); ++i)
    check(std::abs(found[i] - expected[i % 3]) <= 2, say("ink as light ", int{found[i]}));
  const Pixels other = made(whole(8, 8), jpeg(ink, side, side, {1, 1, false, 0, JCS_CMYK, JCS_YCCK}));
  for (std::size_t i = 0; i < other.size(); ++i)
    check(std::abs(other[i] - expected[i % 3]) <= 3, say("YCCK as light ", int{other[i]}));
}

void test_shrunk_pictures() {
  const Bytes data = oriented(jpeg(picture(300, 200, 3, 13), 300, 200, {}), 6, true);
  Bytes out;
  shrink_image(data, 90, 90, out);
  const ImageInfo info = probe_image(out);
  check_equal(info.width, 60U);
  check_equal(info.height, 90U);
  check_equal(info.orientation, 1);
  shrink_image(data, 1000, 90, out);
  check_equal(probe_image(out).height, 300U, "never enlarged");
  shrink_image(jpeg(picture(300, 200, 1, 13), 300, 200, {1, 1, false, 0, JCS_GRAYSCALE}), 90, 90, out);
  check_equal(probe_image(out).channels, 1U, "grey stays grey");
  check_throws<std::invalid_argument>([&] { shrink_image(data, 0, 90, out); });
}

void test_bad_specifications_are_refused() {
  const auto refused = [](const auto& change) {
    ImageSpec spec;
    change(spec);
    check_throws<std::invalid_argument>([&] { const ImageMaker maker(spec); });
  };
  refused([](ImageSpec& s) { s.width = 0; });
  refused([](ImageSpec& s) { s.height = 20'000; });
  refused([](ImageSpec& s) { s.channels = 2; });
  refused([](ImageSpec& s) { s.scale_low = 0; });
  refused([](ImageSpec& s) { s.scale_high = 1.5; });
  refused([](ImageSpec& s) { s.ratio_low = 2; });
  refused([](ImageSpec& s) { s.flip = std::nan(""); });
  refused([](ImageSpec& s) { s.fraction = 0; });
  refused([](ImageSpec& s) { s.std[1] = 0; });
  refused([](ImageSpec& s) { s.max_scale = 3; });
}

}  // namespace

int main() {
  test_windows_equal_the_whole_decode();
  test_kernels_are_bit_equal_at_every_level();
  test_halves_round_to_nearest_even();
  test_orientation_is_applied();
  test_layouts_types_and_levels_agree();
  test_boxes_are_what_they_always_were();
  test_damaged_pictures_are_refused();
  test_a_bomb_of_scans_is_refused();
  test_pictures_without_some_of_their_scans_are_refused();
  test_a_bomb_of_size_is_refused_by_its_header();
  test_nothing_is_left_for_the_next_picture();
  test_ink_becomes_light();
  test_shrunk_pictures();
  test_bad_specifications_are_refused();
  return finish();
}
