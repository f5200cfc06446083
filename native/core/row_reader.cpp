#include "core/row_reader.h"

#include <algorithm>
#include <cstring>

#include "core/copy.h"
#include "core/pieces.h"

namespace penstock {
namespace {

constexpr std::size_t kTile = 64;
constexpr std::uint64_t kPage = 4096;

[[noreturn]] void cut(const File& file) { throw TruncatedError(file.path() + ": the file was cut while it was read"); }

bool has_room(const RowPart& part, std::uint64_t stride) {
  std::uint64_t end = 0;
  if (__builtin_mul_overflow(part.rows, stride, &end)) return false;
  if (part.path.empty() && part.landing == nullptr) return part.memory != nullptr || part.rows == 0;
  return !__builtin_add_overflow(part.offset, end, &end) && end <= (part.landing ? part.landing->size() : part.file_bytes);
}

const std::byte* first_row(const Landing& landing, std::uint64_t offset) {
  const std::byte* const at = landing.data();
  if (at == nullptr) throw std::logic_error("the bytes are not in memory");
  return at + offset;
}

// Copies under guard. A file that somebody cut has no pages beyond its new end, but the rest of its last page reads as zeros: so
// its old last byte is touched too, and where that lies on the page that is read, the size is asked for.
void copy_mapped(const File& file, std::uint64_t offset, std::span<std::byte> out) {
  auto work = [&] {
    std::memcpy(out.data(), file.data() + offset, out.size());
    (void)*static_cast<const volatile std::byte*>(file.data() + file.size() - 1);
  };
  if (!run_guarded(work)) cut(file);
  if (offset + out.size() > file.size() / kPage * kPage && !file.has_its_size()) cut(file);
}

}  // namespace

// Where a row lies. file is null for memory and landings; from is null for a file that is not mapped.
struct RowReader::Piece {
  const std::byte* from;
  const File* file;
  std::uint64_t offset;     // of the row in the file
  std::uint64_t rows_left;  // in the part, this row included
};

// Rows [start, start + rows), and where they go.
struct RowReader::Span {
  std::uint64_t start;
  std::uint64_t rows;
  std::byte* to;
};

RowReader::RowReader(std::vector<RowPart> parts, std::uint64_t stride, FileAccess access, std::uint64_t open_files)
    : stride_(stride), access_(access), open_files_(open_file_limit(access, open_files)) {
  if (stride == 0) throw std::invalid_argument("rows must have at least 1 byte, got 0");
  for (RowPart& part : parts) {
    if (!has_room(part, stride)) throw CorruptError((part.path.empty() ? "memory" : part.path) + ": no room for the rows");
    if (part.rows == 0) continue;
    std::uint64_t next = 0;
    if (__builtin_add_overflow(length_, part.rows, &next) || next > INT64_MAX) throw CorruptError("too many rows");
    parts_.push_back({length_, std::move(part)});
    length_ = next;
  }
  if (parts_.empty()) return;
  const std::uint64_t rows = parts_.front().where.rows;
  const bool even = std::all_of(parts_.begin(), parts_.end() - 1, [=](const Part& part) { return part.where.rows == rows; });
  if (even && parts_.back().where.rows <= rows) even_rows_.emplace(rows);
}

std::size_t RowReader::part_of(std::uint64_t row) const {
  if (even_rows_) return even_rows_->quotient(row);
  const auto after =
      std::upper_bound(parts_.begin(), parts_.end(), row, [](std::uint64_t x, const Part& part) { return x < part.first_row; });
  return static_cast<std::size_t>(after - parts_.begin()) - 1;
}

RowReader::Piece RowReader::locate(Files& files, std::uint64_t row) const {
  const std::size_t number = part_of(row);
  const Part& part = parts_[number];
  const std::uint64_t local = row - part.first_row;
  const std::uint64_t left = part.where.rows - local;
  if (part.where.memory != nullptr) return {part.where.memory + local * stride_, nullptr, 0, left};
  if (part.where.landing != nullptr) {
    return {first_row(*part.where.landing, part.where.offset) + local * stride_, nullptr, 0, left};
  }
  const File& file = files.get(number, [&] { return File::open(part.where.path, part.where.file_bytes, access_); });
  const std::uint64_t offset = part.where.offset + local * stride_;
  return {file.data() == nullptr ? nullptr : file.data() + offset, &file, offset, left};
}

// Spans a tile at a time: locate and prefetch, then copy, then see whether the files are still whole. span(i) gives the first
// row, the number of rows and where they go.
template <class SpanOf>
void RowReader::read_tiles(Files& files, std::size_t low, std::size_t high, const SpanOf& span_of) const {
  Piece tile[kTile];
  Span spans[kTile];
  for (std::size_t done = low; done < high; done += kTile) {
    const std::size_t size = std::min(kTile, high - done);
    bool simple = true;  // all mapped, and none crosses the end of its part
    for (std::size_t i = 0; i < size; ++i) {
      spans[i] = span_of(done + i);
      if (spans[i].rows == 0) {
        tile[i] = {};
        continue;
      }
      tile[i] = locate(files, spans[i].start);
      simple &= tile[i].from != nullptr && spans[i].rows <= tile[i].rows_left;
      const std::uint64_t bytes = std::min<std::uint64_t>(spans[i].rows * stride_, 256);
      for (std::uint64_t at = 0; at < bytes; at += 64) __builtin_prefetch(tile[i].from + at);
    }
    if (!simple) {
      for (std::size_t i = 0; i < size; ++i) read_run(files, spans[i].start, spans[i].rows, spans[i].to);
      continue;
    }
    auto work = [&] {
      for (std::size_t i = 0; i < size; ++i) copy_record_bytes(spans[i].to, tile[i].from, spans[i].rows * stride_);
      const File* last = nullptr;
      for (std::size_t i = 0; i < size; ++i) {
        const File* const file = tile[i].file;
        if (file == nullptr || file == last) continue;
        last = file;
        (void)*static_cast<const volatile std::byte*>(file->data() + file->size() - 1);
      }
    };
    const bool done_whole = run_guarded(work);
    for (std::size_t i = 0; i < size; ++i) {
      const File* const file = tile[i].file;
      if (file == nullptr) continue;
      const bool at_end = tile[i].offset + spans[i].rows * stride_ > file->size() / kPage * kPage;
      if ((at_end || !done_whole) && !file->has_its_size()) cut(*file);
    }
    if (!done_whole) throw TruncatedError("memory that is being read belongs to a file that was cut");
  }
}

// Single rows of files that are mapped, or of memory, a tile at a time: locate and prefetch, copy, see whether the files are
// still whole. Returns how far it came: to a tile with a row in a file that is not mapped.
std::size_t RowReader::read_mapped(Files& files, std::span<const std::int64_t> rows, std::size_t low, std::size_t high,
                                   std::byte* out) const {
  struct Used {
    const File* file;
    bool at_end;  // whether a row of the file's last page, which may be cut unnoticed, was read
  };
  const std::byte* from[kTile];
  Used used[kTile];
  for (std::size_t done = low, size = 0; done < high; done += size) {
    size = std::min(kTile, high - done);
    std::size_t num_used = 0;
    std::uint64_t first = 0;
    std::uint64_t count = 0;
    const std::byte* base = nullptr;
    const std::byte* last_page = nullptr;
    for (std::size_t i = 0; i < size; ++i) {
      const auto row = static_cast<std::uint64_t>(rows[done + i]);
      if (row - first >= count) {  // in another part than the row before, or the first
        const Part& part = parts_[part_of(row)];
        first = part.first_row;
        count = part.where.rows;
        const Piece piece = locate(files, first);
        if (piece.from == nullptr) return done;
        base = piece.from;
        last_page = piece.file == nullptr ? nullptr : piece.file->data() + piece.file->size() / kPage * kPage;
        used[num_used++] = {piece.file, false};
      }
      from[i] = base + (row - first) * stride_;
      used[num_used - 1].at_end |= last_page != nullptr && from[i] + stride_ > last_page;
      prefetch_record(from[i], stride_);
    }
    auto work = [&] {
      copy_records(out + done * stride_, {from, size}, stride_);
      for (std::size_t i = 0; i < num_used; ++i) {
        if (used[i].file == nullptr) continue;
        (void)*static_cast<const volatile std::byte*>(used[i].file->data() + used[i].file->size() - 1);
      }
    };
    const bool done_whole = run_guarded(work);
    for (std::size_t i = 0; i < num_used; ++i) {
      if (used[i].file != nullptr && (used[i].at_end || !done_whole) && !used[i].file->has_its_size()) cut(*used[i].file);
    }
    if (!done_whole) throw TruncatedError("memory that is being read belongs to a file that was cut");
  }
  return high;
}

void RowReader::read_run(Files& files, std::uint64_t start, std::uint64_t run, std::byte* out) const {
  while (run > 0) {
    const Piece piece = locate(files, start);
    const std::uint64_t rows = std::min(run, piece.rows_left);
    const std::span<std::byte> to{out, rows * stride_};
    if (piece.file == nullptr) {
      auto copy = [&] { std::memcpy(to.data(), piece.from, to.size()); };
      if (!run_guarded(copy)) throw TruncatedError("memory that is being read belongs to a file that was cut");
    } else if (piece.from != nullptr) {
      copy_mapped(*piece.file, piece.offset, to);
    } else {
      piece.file->read(piece.offset, to);
    }
    start += rows;
    run -= rows;
    out += to.size();
  }
}

void RowReader::read(std::span<const std::int64_t> starts, std::uint64_t run, std::byte* out, ThreadPool& pool) const {
  if (run == 0 || starts.empty()) return;
  const std::uint64_t bytes = run * stride_;
  const auto span_of = [=](std::size_t i) { return Span{static_cast<std::uint64_t>(starts[i]), run, out + i * bytes}; };
  read_all(starts.size(), bytes, pool, [=, this](Files& files, std::size_t low, std::size_t high) {
    if (run == 1) low = read_mapped(files, starts, low, high, out);
    read_tiles(files, low, high, span_of);
  });
}

void RowReader::read_spans(std::span<const std::int64_t> starts, std::span<const std::int64_t> offsets, std::byte* out,
                           ThreadPool& pool) const {
  if (starts.empty()) return;
  const auto total = static_cast<std::uint64_t>(offsets.back() - offsets.front());
  const auto span_of = [=, this](std::size_t i) {
    return Span{static_cast<std::uint64_t>(starts[i]), static_cast<std::uint64_t>(offsets[i + 1] - offsets[i]),
                out + static_cast<std::uint64_t>(offsets[i]) * stride_};
  };
  read_all(starts.size(), total * stride_ / starts.size() + 1, pool,
           [=, this](Files& files, std::size_t low, std::size_t high) { read_tiles(files, low, high, span_of); });
}

template <class Read>
void RowReader::read_all(std::size_t count, std::uint64_t bytes_each, ThreadPool& pool, const Read& read) const {
  Files& files = files_.get(parts_.size());
  in_slices(count, parts_.size(), open_files_, [&](std::size_t first, std::size_t size) {
    {
      const Files::Use use = files.use();
      in_pieces(size, bytes_each, pool, [&](std::size_t low, std::size_t high) { read(files, first + low, first + high); });
    }
    files.trim(open_files_, [](std::size_t) {});
  });
}

}  // namespace penstock
