// What bench/images.py compares with, for ctypes: decoding alone, as a limit, and penstock's resize of pixels that others decoded.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

// After cstdio, which it needs.
#include <jpeglib.h>

#include "core/image_resize.h"

using namespace penstock;

namespace {

struct Job {
  const unsigned char* const* files;
  const std::uint64_t* sizes;
  const std::int32_t* boxes;  // x, y, width, height, flip
  std::uint64_t count;
  std::uint32_t side;
};

// The part of the picture that the box needs, at the scale that suffices: the bare library, into one buffer, with nothing behind it.
void decode(const Job& job, std::uint64_t i, std::vector<unsigned char>& buffer) {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, job.files[i], job.sizes[i]);
  jpeg_read_header(&info, TRUE);
  const std::int32_t* const box = job.boxes + 5 * i;
  const auto x = static_cast<JDIMENSION>(box[0]), y = static_cast<JDIMENSION>(box[1]);
  const auto w = static_cast<JDIMENSION>(box[2]), h = static_cast<JDIMENSION>(box[3]);
  JDIMENSION scale = 1;
  while (scale < 8 && w >= 2 * scale * job.side && h >= 2 * scale * job.side) scale *= 2;
  info.scale_num = 1;
  info.scale_denom = scale;
  info.dct_method = JDCT_ISLOW;
  info.out_color_space = JCS_RGB;
  jpeg_start_decompress(&info);
  JDIMENSION left = x / scale, width = (x + w + scale - 1) / scale - left;
  const JDIMENSION top = y / scale, bottom = (y + h + scale - 1) / scale;
  if (width < info.output_width) jpeg_crop_scanline(&info, &left, &width);
  if (top > 0) jpeg_skip_scanlines(&info, top);
  const std::size_t stride = std::size_t{info.output_width} * 3;
  buffer.resize(std::max(buffer.size(), stride * (bottom - top)));
  while (info.output_scanline < bottom) {
    JSAMPROW rows[16];
    const JDIMENSION some = std::min<JDIMENSION>(16, bottom - info.output_scanline);
    for (JDIMENSION k = 0; k < some; ++k) rows[k] = buffer.data() + (info.output_scanline - top + k) * stride;
    jpeg_read_scanlines(&info, rows, some);
  }
  jpeg_destroy_decompress(&info);
}

}  // namespace

extern "C" void decode_all(const unsigned char* const* files, const std::uint64_t* sizes, const std::int32_t* boxes,
                           std::uint64_t count, std::uint32_t side, std::uint32_t threads) {
  const Job job{files, sizes, boxes, count, side};
  std::atomic<std::uint64_t> next{0};
  std::vector<std::thread> crew;
  for (std::uint32_t t = 0; t < threads; ++t) {
    crew.emplace_back([&] {
      std::vector<unsigned char> buffer;
      for (std::uint64_t i; (i = next.fetch_add(1)) < job.count;) decode(job, i, buffer);
    });
  }
  for (std::thread& one : crew) one.join();
}

// A box of RGB pixels as side x side pixels. kRowPadding bytes may be read behind the pixels, and written behind `out`.
extern "C" void resize_box(const std::uint8_t* pixels, std::uint32_t width, const std::int32_t* box, std::uint32_t side,
                           std::uint8_t* out) {
  thread_local ResizeAxis across, down;
  thread_local Scratch<std::int16_t> between, arranged;
  thread_local std::vector<const std::uint8_t*> rows;
  const auto at = [&](int k) { return static_cast<std::uint32_t>(box[k]); };
  const ImageKernel& kernel = image_kernel(best_simd());
  across.plan({at(0), at(2), 1, side, box[4] != 0}, 3);
  down.plan({at(1), at(3), 1, side, false});
  const std::size_t elements = std::size_t{at(2)} * 3, behind = across.taps() * 3 + kRowPadding;
  std::int16_t* const row = between.take(elements + behind);
  std::fill_n(row + elements, behind, std::int16_t{0});
  const std::int16_t* weights = across.all_weights();
  if (kernel.arrange3 != nullptr) {
    std::int16_t* const made = arranged.take(4 * across.taps() * across.padded());
    kernel.arrange3(weights, across.taps(), across.padded(), made);
    weights = made;
  }
  for (std::uint32_t y = 0; y < side; ++y) {
    rows.resize(down.count(y));
    for (std::uint32_t k = 0; k < down.count(y); ++k) {
      rows[k] = pixels + (std::size_t{at(1) + down.first(y) + k} * width + at(0)) * 3;
    }
    kernel.down(rows.data(), down.weights(y), down.count(y), elements, row);
    kernel.across3(row, across.all_first(), weights, across.taps(), side, out + std::size_t{y} * side * 3);
  }
}
