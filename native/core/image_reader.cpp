#include "core/image_reader.h"

#include <cstring>
#include <stdexcept>
#include <vector>

#include "core/buffer_pool.h"
#include "core/error.h"

namespace penstock {

void ImageReader::read(const RingRead& read) const {
  if (!read.offsets.empty()) throw std::logic_error("pictures are not read in runs");
  if (read.seeds.size() != read.ids.size()) throw std::logic_error("pictures need a seed each");
  for (std::size_t i = 0; i < read.ids.size(); ++i) {
    const std::size_t place = read.places[i];
    std::byte* const out = read.out + place * maker_.bytes();
    const std::span<const std::int64_t> row = read.ids.subspan(i, 1);
    std::int64_t size = 0;
    bytes_.sizes(row, 0, &size, nullptr);
    if (size < 0) {
      if (needs_all_) throw ImageError("a picture is missing");
      read.present[place] = 0;
      std::memset(out, 0, maker_.bytes());
      continue;
    }
    if (static_cast<std::uint64_t>(size) > bytes_.batch_bytes())
      throw BatchTooLargeError("a picture has more bytes than the limit for a batch");
    const Buffer encoded = take_buffer(static_cast<std::size_t>(size));
    const std::int64_t start = 0;
    bytes_.read(row, &start, &size, encoded.get());
    maker_.make({encoded.get(), static_cast<std::size_t>(size)}, read.seeds[i], out);
  }
}

}  // namespace penstock
