#include "core/packed_records.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

#include "core/error.h"

namespace penstock {
namespace {

constexpr std::size_t kTile = 64;
constexpr std::size_t kSize = sizeof(std::uint32_t);
constexpr std::size_t kMostDims = 32;

std::uint64_t little(const std::byte* at, std::size_t bytes) {
  std::uint64_t value = 0;
  std::memcpy(&value, at, bytes);
  return value;
}

std::uint32_t word(const std::byte* at, bool swapped) {
  const auto value = static_cast<std::uint32_t>(little(at, kSize));
  return swapped ? __builtin_bswap32(value) : value;
}

}  // namespace

PackedRecords::PackedRecords(const RowReader& line, std::vector<PackedFile> files, std::vector<PackedSize> columns)
    : line_(line), files_(std::move(files)), columns_(std::move(columns)), firsts_{0} {
  if (line.stride() != 1) throw std::invalid_argument("expected a line of bytes");
  if (columns_.empty() || columns_.size() > 1 << 16) throw std::invalid_argument("expected 1 to 65,536 columns");
  for (const PackedSize& column : columns_) {
    if (column.bytes < -1 || column.bytes > UINT32_MAX || (column.bytes < 0 && !column.is_told)) {
      throw std::invalid_argument("expected a size of every column, or its size in the records");
    }
    told_ += column.is_told ? 1 : 0;
  }
  for (const PackedFile& file : files_) {
    std::uint64_t next = 0;
    std::uint64_t end = 0;
    if (__builtin_add_overflow(file.base, file.bytes, &end) || end > line.length() || file.records > UINT32_MAX ||
        file.table > file.bytes || (file.records + 1) * kSize > file.bytes - file.table) {
      throw std::invalid_argument("expected files on the line, with room for their tables");
    }
    if (__builtin_add_overflow(firsts_.back(), file.records, &next) || next > INT64_MAX) throw CorruptError("too many records");
    firsts_.push_back(next);
  }
}

std::size_t PackedRecords::file_of(std::uint64_t record) const {
  return static_cast<std::size_t>(std::upper_bound(firsts_.begin(), firsts_.end(), record) - firsts_.begin()) - 1;
}

std::string PackedRecords::name(std::int64_t record) const {
  const std::size_t file = file_of(static_cast<std::uint64_t>(record));
  return files_[file].name + ", record " + std::to_string(static_cast<std::uint64_t>(record) - firsts_[file]);
}

void PackedRecords::find(std::span<const std::int64_t> records, Run* out) const {
  struct Bounds {
    std::uint32_t begin;
    std::uint32_t end;
  };
  std::array<Bounds, kTile> bounds;
  std::array<std::size_t, kTile> of;
  std::array<RowReader::Span, kTile> spans;
  for (std::size_t done = 0; done < records.size(); done += kTile) {
    const std::size_t size = std::min(kTile, records.size() - done);
    std::size_t num_spans = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const auto record = static_cast<std::uint64_t>(records[done + i]);
      of[i] = file_of(record);
      const PackedFile& file = files_[of[i]];
      const std::uint64_t local = record - firsts_[of[i]];
      if (file.offsets != nullptr) {
        bounds[i] = {file.offsets[local], file.offsets[local + 1]};
      } else {
        spans[num_spans++] = {file.base + file.table + local * kSize, sizeof(Bounds), reinterpret_cast<std::byte*>(&bounds[i])};
      }
    }
    line_.read_spans({spans.data(), num_spans}, alone_);
    for (std::size_t i = 0; i < size; ++i) {
      const PackedFile& file = files_[of[i]];
      const auto [begin, end] = bounds[i];
      if (begin < file.table + (file.records + 1) * kSize || end < begin || end > file.bytes) {
        throw CorruptError(name(records[done + i]) + ": expected it behind the table, within " + std::to_string(file.bytes) +
                           " bytes, found it in bytes " + std::to_string(begin) + " to " + std::to_string(end));
      }
      out[done + i] = {static_cast<std::int64_t>(file.base + begin), static_cast<std::int64_t>(end - begin)};
    }
  }
}

void PackedRecords::find(std::size_t column, std::span<const std::int64_t> records, Run* out) const {
  const std::size_t head_bytes = told_ * kSize;
  std::vector<std::byte> heads(kTile * head_bytes);
  std::array<RowReader::Span, kTile> spans;
  for (std::size_t done = 0; done < records.size(); done += kTile) {
    const std::size_t size = std::min(kTile, records.size() - done);
    const std::span<const std::int64_t> some = records.subspan(done, size);
    Run* const runs = out + done;
    find(some, runs);
    for (std::size_t i = 0; i < size; ++i) {
      if (static_cast<std::uint64_t>(runs[i].rows) < head_bytes) {
        throw CorruptError(name(some[i]) + ": expected the sizes of " + std::to_string(told_) + " columns, found " +
                           std::to_string(runs[i].rows) + " bytes");
      }
      spans[i] = {static_cast<std::uint64_t>(runs[i].start), head_bytes, heads.data() + i * head_bytes};
    }
    if (head_bytes > 0) line_.read_spans({spans.data(), size}, alone_);
    for (std::size_t i = 0; i < size; ++i) {
      const std::byte* told = heads.data() + i * head_bytes;
      std::uint64_t at = head_bytes;
      Run found = {};
      for (std::size_t c = 0; c < columns_.size(); ++c) {
        auto bytes = static_cast<std::uint64_t>(columns_[c].bytes);
        if (columns_[c].is_told) {
          const std::uint64_t said = little(told, kSize);
          if (columns_[c].bytes >= 0 && said != bytes) {
            throw CorruptError(name(some[i]) + ": expected " + std::to_string(bytes) + " bytes in column " + std::to_string(c) +
                               ", found " + std::to_string(said));
          }
          bytes = said;
          told += kSize;
        }
        if (c == column) found = {runs[i].start + static_cast<std::int64_t>(at), static_cast<std::int64_t>(bytes)};
        at += bytes;
      }
      if (at != static_cast<std::uint64_t>(runs[i].rows)) {
        throw CorruptError(name(some[i]) + ": expected " + std::to_string(at) + " bytes for its columns, found " +
                           std::to_string(runs[i].rows));
      }
      runs[i] = found;
    }
  }
}

// The bytes before the values of an array, and its sizes.
struct PackedColumn::Head {
  std::uint64_t bytes;
  std::array<std::uint64_t, kMostDims> dims;
};

PackedColumn::PackedColumn(const PackedRecords& records, std::size_t column, const PackedArray& array)
    : records_(records), line_(records.line()), column_(column), array_(array) {
  if (column >= records.num_columns()) throw std::invalid_argument("expected a column of the records");
  if (array.ndim > kMostDims || array.item_bytes == 0) throw std::invalid_argument("expected arrays of at most 32 dimensions");
}

// `bytes` are the first of the value: as many as the longest head has, or all.
PackedColumn::Head PackedColumn::parse(std::int64_t record, std::span<const std::byte> bytes) const {
  const auto fail = [&](const std::string& found) {
    throw CorruptError(records_.name(record) + ": expected an array of type " + std::to_string(array_.code) + " with " +
                       std::to_string(array_.ndim) + " dimensions, as in the first record, found " + found);
  };
  const auto need = [&](std::size_t count) {
    if (bytes.size() < count) fail(std::to_string(bytes.size()) + " bytes");
  };
  Head head = {};
  std::size_t at = 0;
  std::size_t each = kSize;
  bool swapped = false;
  if (array_.form == PackedForm::words) {
    need(2 * kSize);
    const std::uint32_t code = word(bytes.data(), false);
    const std::uint32_t ndim = word(bytes.data() + kSize, false);
    swapped = code != array_.code || ndim != array_.ndim;
    if (swapped && (__builtin_bswap32(code) != array_.code || __builtin_bswap32(ndim) != array_.ndim)) {
      fail("type " + std::to_string(code) + ", " + std::to_string(ndim) + " dimensions");
    }
    at = 2 * kSize;
  } else {
    if (array_.form == PackedForm::mds_typed) {
      need(1);
      const auto code = std::to_integer<std::uint32_t>(bytes[at++]);
      if (code != array_.code) fail("type " + std::to_string(code));
    }
    need(at + 1);
    const auto said = std::to_integer<std::uint32_t>(bytes[at++]);
    if (said >> 2 != array_.ndim) fail(std::to_string(said >> 2) + " dimensions");
    each = std::size_t{1} << (said & 3);
  }
  need(at + each * array_.ndim);
  for (std::size_t d = 0; d < array_.ndim; ++d, at += each) {
    head.dims[d] = swapped ? word(bytes.data() + at, true) : little(bytes.data() + at, each);
  }
  head.bytes = at;
  return head;
}

void PackedColumn::find_shaped(std::span<const std::int64_t> records, std::uint8_t ndim, Run* out, std::uint32_t* dims) const {
  if (ndim != 0 && ndim != array_.ndim) throw std::logic_error("arrays have another number of dimensions");
  records_.find(column_, records, out);
  if (array_.form == PackedForm::plain) return;
  const std::size_t most = 8 + 8 * std::size_t{array_.ndim};
  std::vector<std::byte> heads(std::min(kTile, records.size()) * most);
  std::array<RowReader::Span, kTile> spans;
  for (std::size_t done = 0; done < records.size(); done += kTile) {
    const std::size_t size = std::min(kTile, records.size() - done);
    for (std::size_t i = 0; i < size; ++i) {
      const Run& run = out[done + i];
      const auto bytes = static_cast<std::uint64_t>(run.rows);
      spans[i] = {static_cast<std::uint64_t>(run.start), std::min<std::uint64_t>(bytes, most), heads.data() + i * most};
    }
    line_.read_spans({spans.data(), size}, alone_);
    for (std::size_t i = 0; i < size; ++i) {
      Run& run = out[done + i];
      const std::int64_t record = records[done + i];
      const Head head = parse(record, {spans[i].to, static_cast<std::size_t>(spans[i].rows)});
      const std::uint64_t left = static_cast<std::uint64_t>(run.rows) - head.bytes;
      unsigned __int128 wanted = array_.item_bytes;
      bool fits = true;
      for (std::size_t d = 0; d < array_.ndim; ++d) {
        fits &= head.dims[d] <= UINT32_MAX;
        wanted = std::min<unsigned __int128>(wanted * (fits ? head.dims[d] : 0), static_cast<unsigned __int128>(1) << 64);
        if (ndim != 0 && fits) dims[(done + i) * ndim + d] = static_cast<std::uint32_t>(head.dims[d]);
      }
      if (!fits || wanted != left) {
        throw CorruptError(records_.name(record) + ": expected as many bytes as its shape has, found " + std::to_string(left));
      }
      run = {run.start + static_cast<std::int64_t>(head.bytes), static_cast<std::int64_t>(left)};
    }
  }
}

}  // namespace penstock
