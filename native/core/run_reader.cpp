#include "core/run_reader.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace penstock {

RunReader::RunReader(const RowReader& rows, std::span<const std::int64_t> bounds, std::uint64_t batch_bytes)
    : rows_(rows), bounds_(bounds), batch_bytes_(batch_bytes) {
  if (bounds.empty() || bounds.front() < 0 || static_cast<std::uint64_t>(bounds.back()) > rows.length() ||
      !std::is_sorted(bounds.begin(), bounds.end())) {
    throw std::invalid_argument("expected bounds that rise from 0 or more to at most the number of rows");
  }
}

void RunReader::sizes(std::span<const std::int64_t> rows, std::uint8_t ndim, std::int64_t* sizes, std::uint32_t*) const {
  if (ndim != 0) throw std::logic_error("runs of rows have no shapes");
  const auto stride = static_cast<std::int64_t>(rows_.stride());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<std::size_t>(rows[i]);
    sizes[i] = (bounds_[row + 1] - bounds_[row]) * stride;
  }
}

void RunReader::read(std::span<const std::int64_t> rows, const std::int64_t* starts, const std::int64_t* sizes,
                     std::byte* out) const {
  std::vector<RecordPart> parts;
  parts.reserve(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) parts.push_back({rows[i], sizes[i], 0, sizes[i], starts[i]});
  read_parts(parts, out);
}

void RunReader::read_parts(std::span<const RecordPart> parts, std::byte* out) const {
  const auto stride = static_cast<std::int64_t>(rows_.stride());
  std::vector<RowReader::Span> spans;
  spans.reserve(parts.size());
  for (const RecordPart& part : parts) {
    const std::int64_t begin = bounds_[static_cast<std::size_t>(part.row)];
    const std::int64_t end = bounds_[static_cast<std::size_t>(part.row) + 1];
    if (part.size != (end - begin) * stride) throw std::logic_error("a record has another size than was measured");
    spans.push_back({static_cast<std::uint64_t>(begin + part.skip / stride), static_cast<std::uint64_t>(part.count / stride),
                     out + part.start});
  }
  rows_.read_spans(spans, alone_);
}

}  // namespace penstock
