#include "core/image.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "core/error.h"
#include "core/image_decode.h"
#include "core/little_endian.h"

namespace penstock {
namespace {

constexpr std::uint32_t kMaxOutputSide = 16'384;

void need(bool fine, const char* expected) {
  if (!fine) throw std::invalid_argument(std::string("expected ") + expected);
}

const ImageSpec& checked(const ImageSpec& spec) {
  const auto size = [](std::uint32_t side) { return side >= 1 && side <= kMaxOutputSide; };
  need(size(spec.height) && size(spec.width), "a height and a width from 1 to 16,384");
  need(spec.channels == 1 || spec.channels == 3, "1 or 3 channels");
  need(!spec.numbers || (spec.channels == 1 && spec.type == ImageType::u1), "one channel of bytes for a mask of numbers");
  need(spec.scale_low > 0 && spec.scale_low <= spec.scale_high && spec.scale_high <= 1, "0 < scale[0] <= scale[1] <= 1");
  need(spec.ratio_low >= 1e-3 && spec.ratio_low <= spec.ratio_high && spec.ratio_high <= 1e3,
       "0.001 <= ratio[0] <= ratio[1] <= 1000");
  need(spec.fraction > 0 && spec.fraction <= 1, "a fraction above 0 and at most 1");
  need(spec.flip >= 0 && spec.flip <= 1, "a probability of a flip from 0 to 1");
  need(spec.max_pixels >= 1, "at least 1 pixel at most");
  need(spec.max_scale == 1 || spec.max_scale == 2 || spec.max_scale == 4 || spec.max_scale == 8, "a max_scale of 1, 2, 4 or 8");
  for (std::size_t c = 0; c < 3; ++c) {
    need(std::isfinite(spec.mean[c]) && std::isfinite(spec.std[c]) && spec.std[c] > 0, "finite means, and std above 0");
  }
  return spec;
}

std::size_t item_bytes(ImageType type) { return type == ImageType::f4 ? 4 : type == ImageType::f2 ? 2 : 1; }

struct Affine {
  float factor, offset;
};

Affine affine_of(const ImageSpec& spec, std::size_t channel) {
  if (!spec.normalise) return {static_cast<float>(1.0 / 255.0), 0.0F};
  const double std = spec.std[channel];
  return {static_cast<float>(1.0 / (255.0 * std)), static_cast<float>(-(spec.mean[channel] / std))};
}

// Of this thread, used again for the next picture.
struct Workspace {
  ResizeAxis across, down;
  Scratch<std::int16_t> between, arranged;
  Scratch<std::uint8_t> row, pixels, planes;
  Scratch<std::uint32_t> columns;
  Scratch<const std::uint8_t*> rows;
};

Workspace& workspace() {
  thread_local Workspace mine;
  return mine;
}

constexpr std::size_t kKept = 32 << 20;

std::string shown_start(std::span<const std::byte> data) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte one : data.first(std::min<std::size_t>(data.size(), 8))) {
    text += kDigits[std::to_integer<unsigned>(one) >> 4];
    text += kDigits[std::to_integer<unsigned>(one) & 15];
  }
  return text;
}

ImageFormat format_of(std::span<const std::byte> data) {
  const auto begins = [&](std::size_t at, const char* text, std::size_t size) {
    return data.size() >= at + size && std::memcmp(data.data() + at, text, size) == 0;
  };
  if (begins(0, "\xFF\xD8", 2)) return ImageFormat::jpeg;
  if (begins(0, "\x89PNG\r\n\x1A\n", 8)) return ImageFormat::png;
  if (begins(0, "RIFF", 4) && begins(8, "WEBP", 4)) return ImageFormat::webp;
  if (data.empty()) throw ImageError("no bytes");
  throw ImageError("neither JPEG, PNG nor WebP: it begins with the bytes " + shown_start(data));
}

// An opened picture, closed at the end.
class OpenImage {
 public:
  OpenImage(std::span<const std::byte> encoded, std::uint64_t max_pixels)
      : format(format_of(encoded)),
        decoder_(format == ImageFormat::jpeg  ? jpeg_decoder()
                 : format == ImageFormat::png ? png_decoder()
                                              : webp_decoder()) {
    try {
      stored = decoder_.open(encoded, max_pixels);
    } catch (...) {
      decoder_.close();
      throw;
    }
  }
  ~OpenImage() { decoder_.close(); }
  OpenImage(const OpenImage&) = delete;
  OpenImage& operator=(const OpenImage&) = delete;

  bool transposed() const { return stored.orientation >= 5; }
  std::uint32_t width() const { return transposed() ? stored.height : stored.width; }
  std::uint32_t height() const { return transposed() ? stored.width : stored.height; }

  ImageDecoder* operator->() const { return &decoder_; }

  ImageFormat format;
  StoredImage stored;

 private:
  ImageDecoder& decoder_;
};

// How the box of a displayed picture is read from the stored one.
struct ResizeJob {
  ResizeRange across, down;  // along the axes of the stored picture
  std::uint32_t channels = 3;
  bool transposed = false;
};

ResizeJob job_of(const OpenImage& image, const ImageBox& box, std::uint32_t out_width, std::uint32_t out_height,
                 std::uint32_t channels) {
  const int orientation = image.stored.orientation;
  ResizeRange x{box.x, box.width, 1, out_width, box.flip};
  ResizeRange y{box.y, box.height, 1, out_height, false};
  ResizeJob job{image.transposed() ? y : x, image.transposed() ? x : y, channels, image.transposed()};
  const auto reverse = [](ResizeRange& range, std::uint32_t side) {
    range.start = side - range.start - range.length;
    range.reversed = !range.reversed;
    range.mirrored = true;
  };
  if (orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8) reverse(job.across, image.stored.width);
  if (orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7) reverse(job.down, image.stored.height);
  return job;
}

// The largest power of two up to `most` at which the box still has the pixels of the output.
std::uint32_t scale_of(const ResizeJob& job, std::uint32_t most) {
  std::uint32_t scale = 1;
  while (scale < most && job.across.length >= 2 * scale * job.across.out && job.down.length >= 2 * scale * job.down.out) {
    scale *= 2;
  }
  return scale;
}

// Gives take the columns of a picture as rows.
template <class Take>
void take_columns(const std::uint8_t* pixels, std::size_t width, std::size_t height, std::size_t channels, const Take& take) {
  std::uint8_t* const column = workspace().row.take(height * channels + kRowPadding);
  for (std::size_t x = 0; x < width; ++x) {
    for (std::size_t y = 0; y < height; ++y) {
      for (std::size_t c = 0; c < channels; ++c) column[y * channels + c] = pixels[(y * width + x) * channels + c];
    }
    take(x, column);
  }
}

// The pixel that has the middle of output i in it; on an edge, the one behind it as displayed.
std::uint32_t nearest(const ResizeRange& range, std::uint32_t i) {
  const std::uint64_t place = range.reversed != range.mirrored ? range.out - 1 - i : i;
  const auto from = static_cast<std::uint32_t>((2 * place + 1) * range.length / (2 * std::uint64_t{range.out}));
  return range.start + (range.mirrored ? range.length - 1 - from : from);
}

// Gives take(y, row) every row of the output, as displayed: the stored numbers of the nearest pixels.
template <class Take>
void pick_numbers(const OpenImage& image, const ResizeJob& job, const Take& take) {
  Workspace& work = workspace();
  const ResizeRange& across = job.across;
  const ResizeRange& down = job.down;
  image->start({across.start, down.start, across.start + across.length, down.start + down.length, 1, 1, true});
  std::uint32_t* const columns = work.columns.take(across.out);
  for (std::uint32_t x = 0; x < across.out; ++x) columns[x] = nearest(across, x) - across.start;
  const std::size_t width = across.out;
  std::uint8_t* const pixels = job.transposed ? work.pixels.take(width * down.out) : work.row.take(width);
  for (std::uint32_t y = 0; y < down.out; ++y) {
    const std::uint32_t from = nearest(down, y);
    image->read(from + 1);
    const std::uint8_t* const row = image->row(from);
    std::uint8_t* const out = job.transposed ? pixels + y * width : pixels;
    for (std::size_t x = 0; x < width; ++x) out[x] = row[columns[x]];
    if (!job.transposed) take(y, out);
  }
  image->finish();
  if (job.transposed) take_columns(pixels, width, down.out, 1, take);
  work.pixels.trim(kKept);
}

// Every row of the output, as displayed, in RGB or grey bytes: made at room(y), which has kOutputSlack bytes more; where that is
// null, given to take(y, row), and there until the next.
template <class Room, class Take>
void resize(const OpenImage& image, ResizeJob job, std::uint32_t most_scale, const ImageKernel& kernel, const Room& room,
            const Take& take) {
  Workspace& work = workspace();
  const std::uint32_t scale = image->best_scale(scale_of(job, most_scale));
  job.across.scale = job.down.scale = scale;
  work.across.plan(job.across, job.channels);
  work.down.plan(job.down);
  const std::uint32_t left = job.across.first(), top = job.down.first();
  image->start({left, top, job.across.last(), job.down.last(), scale, job.channels});

  const std::size_t channels = job.channels, width = job.across.out, height = job.down.out;
  const std::size_t elements = (job.across.last() - left) * channels;
  const std::size_t behind = work.across.taps() * channels + kRowPadding;
  std::int16_t* const between = work.between.take(elements + behind);
  std::fill_n(between + elements, behind, std::int16_t{0});
  std::uint8_t* const row = work.row.take(width * channels + kRowPadding);
  std::uint8_t* const pixels = job.transposed ? work.pixels.take(width * height * channels + kRowPadding) : nullptr;
  const auto across = channels == 3 ? kernel.across3 : kernel.across1;
  const std::int16_t* weights = work.across.all_weights();
  if (channels == 3 && kernel.arrange3 != nullptr) {
    std::int16_t* const arranged = work.arranged.take(4 * work.across.taps() * work.across.padded());
    kernel.arrange3(weights, work.across.taps(), work.across.padded(), arranged);
    weights = arranged;
  }
  const std::uint8_t** const rows = work.rows.take(work.down.taps());
  for (std::size_t y = 0; y < height; ++y) {
    const std::uint32_t first = top + work.down.first(y), count = work.down.count(y);
    image->read(first + count);
    for (std::uint32_t k = 0; k < count; ++k) rows[k] = image->row(first + k);
    kernel.down(rows, work.down.weights(y), count, elements, between);
    std::uint8_t* const ready = job.transposed ? pixels + y * width * channels : room(y);
    std::uint8_t* const out = ready != nullptr ? ready : row;
    across(between, work.across.all_first(), weights, work.across.taps(), width, out);
    if (ready == nullptr) take(y, row);
  }
  image->finish();
  if (job.transposed) take_columns(pixels, width, height, channels, take);
  work.between.trim(kKept);
  work.arranged.trim(kKept);
  work.pixels.trim(kKept);
}

// Boxes follow from the displayed size: crops of pictures of two sizes show different things.
void need_same_size(std::span<const std::byte> mask, std::span<const std::byte> picture, std::uint64_t max_pixels) {
  const ImageInfo own = probe_image(mask, max_pixels), other = probe_image(picture, max_pixels);
  if (own.width == other.width && own.height == other.height) return;
  const auto size = [](const ImageInfo& info) { return std::to_string(info.width) + " x " + std::to_string(info.height); };
  throw ImageError("a mask of " + size(own) + " pixels for a picture of " + size(other) +
                   ", as displayed: their crops would not fit each other");
}

}  // namespace

std::uint8_t* ImageDecoder::place(std::uint32_t first_row, std::size_t rows, std::size_t row_bytes, std::size_t skip) {
  std::uint8_t* const begin = memory_.take(rows * row_bytes + kRowPadding);
  first_row_ = first_row;
  stride_ = row_bytes;
  pixels_ = begin + skip;
  return begin;
}

void check_image_size(std::uint64_t width, std::uint64_t height, std::uint64_t max_pixels) {
  const std::string size = std::to_string(width) + " x " + std::to_string(height);
  if (width == 0 || height == 0) throw ImageError("a picture of " + size + " pixels");
  if (width > kMaxImageSide || height > kMaxImageSide) {
    throw ImageError("a picture of " + size + " pixels; sides have at most 65,535");
  }
  if (width * height > max_pixels) {
    throw ImageError("a picture of " + size + " pixels, more than max_pixels=" + std::to_string(max_pixels));
  }
}

int exif_orientation(std::span<const std::byte> tiff) {
  if (tiff.size() < 8) return 1;
  const bool big = tiff[0] == std::byte{'M'};
  if (tiff[0] != tiff[1] || (!big && tiff[0] != std::byte{'I'})) return 1;
  const auto number = [&](std::size_t at, std::size_t size) -> std::uint64_t {  // past the end: 0
    if (at + size > tiff.size()) return 0;
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < size; ++i)
      value = value << 8 | std::to_integer<std::uint64_t>(tiff[at + (big ? i : size - 1 - i)]);
    return value;
  };
  if (number(2, 2) != 42) return 1;
  const std::size_t directory = number(4, 4);
  const std::size_t entries = number(directory, 2);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + 12 * i;
    if (entry + 12 > tiff.size()) return 1;
    if (number(entry, 2) != 0x0112) continue;
    const std::uint64_t value = number(entry + 8, 2);
    return number(entry + 2, 2) == 3 && number(entry + 4, 4) == 1 && value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

ImageMaker::ImageMaker(const ImageSpec& spec, Simd level)
    : spec_(checked(spec)),
      bytes_(std::size_t{spec.height} * spec.width * spec.channels * item_bytes(spec.type)),
      random_(spec.scale_low, spec.scale_high, spec.ratio_low, spec.ratio_high),
      kernel_(&image_kernel(level)) {
  for (std::size_t plane = 0; plane < 3; ++plane) {
    for (std::size_t i = 0; i < 24; ++i) {
      const Affine affine = affine_of(spec, spec.layout == ImageLayout::nchw ? plane : i % spec.channels);
      affine_[plane].factor[i] = affine.factor;
      affine_[plane].offset[i] = affine.offset;
    }
  }
}

ImageBox ImageMaker::box(std::uint32_t width, std::uint32_t height, std::uint64_t seed) const {
  need(width >= 1 && width <= kMaxImageSide && height >= 1 && height <= kMaxImageSide, "sides from 1 to 65,535 pixels");
  ImageBox box{0, 0, width, height};
  if (spec_.crop == ImageCrop::random) box = random_.box(width, height, seed);
  if (spec_.crop == ImageCrop::center) box = center_box(width, height, spec_.width, spec_.height, spec_.fraction);
  box.flip = draw_flip(seed, spec_.flip);
  return box;
}

void ImageMaker::make(std::span<const std::byte> encoded, std::uint64_t seed, std::byte* out,
                      std::span<const std::byte> partner) const {
  if (!partner.empty()) need_same_size(encoded, partner, spec_.max_pixels);
  const OpenImage image(encoded, spec_.max_pixels);
  const ImageBox box = this->box(image.width(), image.height(), seed);
  ImageBox place{0, 0, spec_.width, spec_.height};
  if (spec_.crop == ImageCrop::pad) place = fit_inside(image.width(), image.height(), spec_.width, spec_.height);

  const std::size_t item = item_bytes(spec_.type), channels = spec_.channels;
  const std::size_t row_pixels = spec_.width, plane = row_pixels * spec_.height;
  const auto convert = [&](const std::uint8_t* in, std::size_t count, const ImageAffine& affine, std::byte* to) {
    if (spec_.type == ImageType::u1) {
      std::memcpy(to, in, count);
    } else if (spec_.type == ImageType::f4) {
      kernel_->to_float(in, count, affine, to);
    } else {
      kernel_->to_half(in, count, affine, to);
    }
  };
  std::uint8_t* const planes = workspace().planes.take(2 * 3 * row_pixels);
  // `count` pixels at (x, y) of the output.
  const auto put = [&](std::size_t x, std::size_t y, std::size_t count, const std::uint8_t* in) {
    const std::size_t pixel = y * row_pixels + x;
    if (spec_.layout == ImageLayout::nhwc || channels == 1) {
      convert(in, count * channels, affine_[0], out + pixel * channels * item);
    } else if (spec_.type == ImageType::u1) {
      kernel_->split3(in, count, plane, reinterpret_cast<std::uint8_t*>(out) + pixel);
    } else {
      kernel_->split3(in, count, count, planes);
      for (std::size_t c = 0; c < 3; ++c) convert(planes + c * count, count, affine_[c], out + (c * plane + pixel) * item);
    }
  };
  const ResizeJob job = job_of(image, box, place.width, place.height, spec_.channels);
  const auto take = [&](std::size_t y, const std::uint8_t* row) { put(place.x, place.y + y, place.width, row); };
  // Bytes of pixels need no conversion: rows are made where they stay, as long as enough of this output is behind them.
  const std::size_t row_bytes = row_pixels * channels;
  const bool straight =
      spec_.type == ImageType::u1 && (spec_.layout == ImageLayout::nhwc || channels == 1) && place.width == spec_.width;
  const auto room = [&](std::size_t y) -> std::uint8_t* {
    const std::size_t row = place.y + y;
    const bool fits = straight && (spec_.height - 1 - row) * row_bytes >= kOutputSlack;
    return fits ? reinterpret_cast<std::uint8_t*>(out) + row * row_bytes : nullptr;
  };
  if (spec_.numbers) {
    pick_numbers(image, job, take);
  } else {
    resize(image, job, spec_.max_scale, *kernel_, room, take);
  }
  if (place.width == spec_.width && place.height == spec_.height) return;
  std::uint8_t* const filled = planes + 3 * row_pixels;
  std::memset(filled, spec_.fill, channels * row_pixels);
  for (std::size_t y = 0; y < spec_.height; ++y) {
    if (y < place.y || y >= place.y + place.height) {
      put(0, y, row_pixels, filled);
    } else {
      put(0, y, place.x, filled);
      put(place.x + place.width, y, row_pixels - place.x - place.width, filled);
    }
  }
}

ImageInfo probe_image(std::span<const std::byte> encoded, std::uint64_t max_pixels) {
  const OpenImage image(encoded, max_pixels);
  return {image.format, image.width(), image.height(), image.stored.channels, image.stored.orientation};
}

void shrink_image(std::span<const std::byte> encoded, std::uint32_t max_side, int quality, std::vector<std::byte>& out,
                  std::uint64_t max_pixels) {
  need(max_side >= 1 && max_side <= kMaxOutputSide, "a longest side from 1 to 16,384");
  need(quality >= 1 && quality <= 100, "a quality from 1 to 100");
  const OpenImage image(encoded, max_pixels);
  const std::uint32_t width = image.width(), height = image.height();
  const std::uint32_t longest = std::min(std::max(width, height), max_side);
  const ImageBox size = fit_inside(width, height, longest, longest);
  const std::uint32_t channels = image.stored.channels <= 2 ? 1 : 3;
  thread_local Scratch<std::uint8_t> made;
  std::uint8_t* const pixels = made.take(std::size_t{size.width} * size.height * channels + kOutputSlack);
  // Twice the pixels of the output at least: quality matters more here than time.
  ResizeJob job = job_of(image, {0, 0, width, height}, size.width, size.height, channels);
  const std::uint32_t scale = std::max<std::uint32_t>(1, scale_of(job, 8) / 2);
  const std::size_t row_bytes = std::size_t{size.width} * channels;
  const auto room = [&](std::size_t y) { return pixels + y * row_bytes; };
  const auto take = [&](std::size_t y, const std::uint8_t* row) { std::memcpy(pixels + y * row_bytes, row, row_bytes); };
  resize(image, job, scale, image_kernel(best_simd()), room, take);
  encode_jpeg(pixels, size.width, size.height, channels, quality, out);
  made.trim(kKept);
}

}  // namespace penstock
