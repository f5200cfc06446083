#include "core/image_reader.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "core/buffer_pool.h"
#include "core/error.h"

namespace penstock {
namespace {

struct EncodedImage {
  Buffer buffer;
  std::int64_t size = -1;  // below 0: missing

  std::span<const std::byte> bytes() const { return {buffer.get(), static_cast<std::size_t>(std::max<std::int64_t>(size, 0))}; }
};

EncodedImage encoded_in(const VaryingReader& reader, std::span<const std::int64_t> row) {
  EncodedImage found;
  reader.sizes(row, 0, &found.size, nullptr);
  if (found.size < 0) return found;
  if (static_cast<std::uint64_t>(found.size) > reader.batch_bytes())
    throw BatchTooLargeError("a picture has more bytes than the limit for a batch");
  found.buffer = take_buffer(static_cast<std::size_t>(found.size));
  const std::int64_t start = 0;
  reader.read(row, &start, &found.size, found.buffer.get());
  return found;
}

}  // namespace

void ImageReader::read(const RingRead& read) const {
  if (!read.offsets.empty()) throw std::logic_error("pictures are not read in runs");
  if (read.seeds.size() != read.ids.size()) throw std::logic_error("pictures need a seed each");
  for (std::size_t i = 0; i < read.ids.size(); ++i) {
    const std::size_t place = read.places[i];
    std::byte* const out = read.out + place * maker_.bytes();
    const std::span<const std::int64_t> row = read.ids.subspan(i, 1);
    const EncodedImage encoded = encoded_in(bytes_, row);
    if (encoded.size < 0) {
      if (needs_all_) throw ImageError("a picture is missing");
      read.present[place] = 0;
      std::memset(out, 0, maker_.bytes());
      continue;
    }
    const EncodedImage partner = partner_ == nullptr ? EncodedImage{} : encoded_in(*partner_, row);
    maker_.make(encoded.bytes(), read.seeds[i], out, partner.bytes());
  }
}

}  // namespace penstock
