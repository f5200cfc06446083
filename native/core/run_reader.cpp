#include "core/run_reader.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "core/buffer_pool.h"
#include "core/crc32c.h"
#include "core/error.h"
#include "core/pieces.h"
#include "core/utf8.h"

namespace penstock {

void RunTable::find_shaped(std::span<const std::int64_t> records, std::uint8_t ndim, Run* out, std::uint32_t*) const {
  if (ndim != 0) throw std::logic_error("runs of rows have no shapes");
  find(records, out);
}

RisingBounds::RisingBounds(std::span<const std::int64_t> bounds, std::uint64_t rows) : bounds_(bounds) {
  if (bounds.empty() || bounds.front() < 0 || static_cast<std::uint64_t>(bounds.back()) > rows ||
      !std::is_sorted(bounds.begin(), bounds.end())) {
    throw std::invalid_argument("expected bounds that rise from 0 or more to at most the number of rows");
  }
}

void RisingBounds::find(std::span<const std::int64_t> records, Run* out) const {
  for (std::size_t i = 0; i < records.size(); ++i) {
    const auto record = static_cast<std::size_t>(records[i]);
    out[i] = {bounds_[record], bounds_[record + 1] - bounds_[record]};
  }
}

// Runs of records, and their crcs where there are some.
struct RunReader::Found {
  std::vector<Run> runs;
  std::vector<std::uint32_t> crcs;

  std::uint32_t crc(std::size_t i) const { return crcs.empty() ? 0 : crcs[i]; }
};

RunReader::Found RunReader::find(std::span<const std::int64_t> rows) const {
  Found found{std::vector<Run>(rows.size()), std::vector<std::uint32_t>(table_.has_crcs() ? rows.size() : 0)};
  table_.find(rows, found.runs.data());
  if (!found.crcs.empty()) table_.find_crcs(rows, found.crcs.data());
  return found;
}

void RunReader::check(std::int64_t row, std::span<const std::byte> content, std::uint32_t crc) const {
  if (table_.has_crcs() && crc32c(content) != crc) {
    throw CorruptError(table_.name(row) + ": the checksum of its bytes is not the one in the file: restore the file");
  }
  if (checks_.is_text && !is_utf8(content)) throw CorruptError(table_.name(row) + ": the text is not UTF-8");
}

void RunReader::sizes(std::span<const std::int64_t> rows, std::uint8_t ndim, std::int64_t* sizes, std::uint32_t* dims) const {
  const auto stride = static_cast<std::int64_t>(rows_.stride());
  const auto item = static_cast<std::int64_t>(checks_.item_bytes);
  std::vector<Run> runs(rows.size());
  table_.find_shaped(rows, ndim, runs.data(), dims);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    sizes[i] = runs[i].rows < 0 ? -1 : runs[i].rows * stride;
    if (item > 1 && sizes[i] > 0 && sizes[i] % item != 0) {
      throw CorruptError(table_.name(rows[i]) + ": expected elements of " + std::to_string(item) + " bytes, found " +
                         std::to_string(sizes[i]) + " bytes");
    }
  }
}

void RunReader::read(std::span<const std::int64_t> rows, const std::int64_t* starts, const std::int64_t* sizes, std::byte* out,
                     ThreadPool& pool) const {
  const auto stride = static_cast<std::int64_t>(rows_.stride());
  const Found found = find(rows);
  std::vector<RowReader::Span> spans;
  spans.reserve(rows.size());
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Run& run = found.runs[i];
    if ((run.rows < 0 ? -1 : run.rows * stride) != sizes[i]) {
      throw std::logic_error("a record has another size than was measured");
    }
    if (run.rows <= 0) continue;
    spans.push_back({static_cast<std::uint64_t>(run.start), static_cast<std::uint64_t>(run.rows), out + starts[i]});
    total += static_cast<std::uint64_t>(sizes[i]);
  }
  rows_.read_spans(spans, pool);
  if (!checks_content() || rows.empty()) return;
  in_pieces(rows.size(), total / rows.size() + 1, pool, [&](std::size_t low, std::size_t high) {
    for (std::size_t i = low; i < high; ++i) {
      if (sizes[i] >= 0) check(rows[i], {out + starts[i], static_cast<std::size_t>(sizes[i])}, found.crc(i));
    }
  });
}

void RunReader::read_parts(std::span<const RecordPart> parts, std::byte* out) const {
  const auto stride = static_cast<std::int64_t>(rows_.stride());
  std::vector<std::int64_t> rows(parts.size());
  std::transform(parts.begin(), parts.end(), rows.begin(), [](const RecordPart& part) { return part.row; });
  const Found found = find(rows);
  std::vector<RowReader::Span> spans;
  spans.reserve(parts.size());
  Buffer whole;
  std::int64_t in_buffer = -1;  // the record that is there, and was checked
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const RecordPart& part = parts[i];
    const Run& run = found.runs[i];
    if (run.rows < 0 || part.size != run.rows * stride) throw std::logic_error("a record has another size than was measured");
    if (!checks_content() || part.count == part.size) {
      spans.push_back({static_cast<std::uint64_t>(run.start + part.skip / stride),
                       static_cast<std::uint64_t>(part.count / stride), out + part.start});
      continue;
    }
    const auto size = static_cast<std::size_t>(part.size);
    if (in_buffer != part.row) {  // all of a record is checked, whatever is wanted of it
      in_buffer = -1;
      if (whole == nullptr || whole.get_deleter().capacity < size) whole = take_buffer(size);
      const RowReader::Span all{static_cast<std::uint64_t>(run.start), static_cast<std::uint64_t>(run.rows), whole.get()};
      rows_.read_spans({&all, 1}, alone_);
      check(part.row, {whole.get(), size}, found.crc(i));
      in_buffer = part.row;
    }
    std::memcpy(out + part.start, whole.get() + part.skip, static_cast<std::size_t>(part.count));
  }
  rows_.read_spans(spans, alone_);
  if (!checks_content()) return;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const RecordPart& part = parts[i];
    if (part.count == part.size) check(part.row, {out + part.start, static_cast<std::size_t>(part.size)}, found.crc(i));
  }
}

void RunReader::read_fixed(std::span<const std::int64_t> rows, std::uint64_t stride, std::byte* out, std::uint8_t* present,
                           ThreadPool& pool, Places places) const {
  const Found found = find(rows);
  std::vector<RowReader::Span> spans;
  spans.reserve(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Run& run = found.runs[i];
    std::byte* const to = out + places[i] * stride;
    if (run.rows < 0) {
      std::memset(to, 0, stride);
      present[places[i]] = 0;
      continue;
    }
    if (static_cast<std::uint64_t>(run.rows) * rows_.stride() != stride) {
      throw CorruptError(table_.name(rows[i]) + ": expected " + std::to_string(stride) + " bytes, found " +
                         std::to_string(static_cast<std::uint64_t>(run.rows) * rows_.stride()));
    }
    spans.push_back({static_cast<std::uint64_t>(run.start), static_cast<std::uint64_t>(run.rows), to});
  }
  rows_.read_spans(spans, pool);
  if (!table_.has_crcs()) return;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (found.runs[i].rows >= 0) check(rows[i], {out + places[i] * stride, stride}, found.crc(i));
  }
}

}  // namespace penstock
