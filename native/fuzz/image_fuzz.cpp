// Any bytes, taken as a picture: probed, decoded into several outputs, and made a smaller JPEG. Only ImageError may come out, and
// every level gives the same bytes.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/image.h"

using namespace penstock;

namespace {

constexpr std::size_t kMaxInput = 256 << 10;
constexpr std::uint64_t kMaxPixels = 1 << 20;  // so that one input does not take seconds

std::vector<ImageSpec> specs() {
  ImageSpec random;
  random.height = 24;
  random.width = 31;
  random.flip = 0.5;
  random.max_pixels = kMaxPixels;
  ImageSpec grey = random;
  grey.crop = ImageCrop::pad;
  grey.channels = 1;
  grey.type = ImageType::f2;
  ImageSpec center = random;
  center.crop = ImageCrop::center;
  center.fraction = 0.5;
  center.layout = ImageLayout::nchw;
  center.type = ImageType::f4;
  center.max_scale = 1;
  ImageSpec numbers = random;
  numbers.channels = 1;
  numbers.numbers = true;
  return {random, grey, center, numbers};
}

// Whether it was made.
bool make(const ImageMaker& maker, std::span<const std::byte> data, std::uint64_t seed, std::vector<std::byte>& out) {
  out.assign(maker.bytes(), std::byte{0});
  try {
    maker.make(data, seed, out.data(), data);
    return true;
  } catch (const ImageError&) {
    return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > kMaxInput) return -1;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const std::vector<std::byte> encoded(bytes, bytes + size);  // of its own, so that a read past the end is seen
  try {
    (void)probe_image(encoded, kMaxPixels);
  } catch (const ImageError&) {}
  for (const ImageSpec& spec : specs()) {
    std::vector<std::byte> plain, best;
    const bool made = make(ImageMaker(spec, Simd::plain), encoded, size, plain);
    if (make(ImageMaker(spec), encoded, size, best) != made || (made && plain != best)) std::abort();
  }
  try {
    std::vector<std::byte> out;
    shrink_image(encoded, 40, 80, out, kMaxPixels);
    if (probe_image(out).width > 40) std::abort();
  } catch (const ImageError&) {}
  return 0;
}
