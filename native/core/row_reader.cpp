#include "core/row_reader.h"

#include <algorithm>
#include <cstring>

#include "core/pieces.h"

namespace penstock {
namespace {

constexpr std::size_t kTile = 64;
constexpr std::uint64_t kPage = 4096;

[[noreturn]] void cut(const File& file) { throw TruncatedError(file.path() + ": the file was cut while it was read"); }

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

void copy_row(std::byte* out, const std::byte* from, std::uint64_t stride) {
  switch (stride) {
    case 1: std::memcpy(out, from, 1); break;
    case 2: std::memcpy(out, from, 2); break;
    case 4: std::memcpy(out, from, 4); break;
    case 8: std::memcpy(out, from, 8); break;
    case 16: std::memcpy(out, from, 16); break;
    case 32: std::memcpy(out, from, 32); break;
    case 64: std::memcpy(out, from, 64); break;
    case 128: std::memcpy(out, from, 128); break;
    default: std::memcpy(out, from, stride);
  }
}

}  // namespace

// Where a row lies. file is null for memory; from is null for a file that is not mapped.
struct RowReader::Piece {
  const std::byte* from;
  const File* file;
  std::uint64_t offset;     // of the row in the file
  std::uint64_t rows_left;  // in the part, this row included
};

RowReader::RowReader(std::vector<RowPart> parts, std::uint64_t stride, FileAccess access, std::uint64_t open_files)
    : stride_(stride), access_(access), open_files_(open_file_limit(access, open_files)) {
  if (stride == 0) throw std::invalid_argument("rows must have at least 1 byte, got 0");
  for (RowPart& part : parts) {
    std::uint64_t bytes = 0;
    std::uint64_t end = 0;
    const bool fits =
        !__builtin_mul_overflow(part.rows, stride, &bytes) &&
        (part.path.empty() ? part.memory != nullptr || part.rows == 0
                           : !__builtin_add_overflow(part.offset, bytes, &end) && end <= part.file_bytes);
    if (!fits) throw CorruptError(part.path + ": the file has no room for its rows");
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
  const auto after = std::upper_bound(parts_.begin(), parts_.end(), row,
                                      [](std::uint64_t x, const Part& part) { return x < part.first_row; });
  return static_cast<std::size_t>(after - parts_.begin()) - 1;
}

RowReader::Piece RowReader::locate(Files& files, std::uint64_t row) const {
  const std::size_t number = part_of(row);
  const Part& part = parts_[number];
  const std::uint64_t local = row - part.first_row;
  const std::uint64_t left = part.where.rows - local;
  if (part.where.memory != nullptr) return {part.where.memory + local * stride_, nullptr, 0, left};
  const File& file = files.get(number, [&] { return File::open(part.where.path, part.where.file_bytes, access_); });
  const std::uint64_t offset = part.where.offset + local * stride_;
  return {file.data() == nullptr ? nullptr : file.data() + offset, &file, offset, left};
}

// Single rows, a tile at a time: locate and prefetch, then copy, then see whether the files are still whole.
void RowReader::read_rows(Files& files, const std::int64_t* starts, std::size_t count, std::byte* out) const {
  Piece tile[kTile];
  for (std::size_t done = 0; done < count; done += kTile) {
    const std::size_t size = std::min(kTile, count - done);
    bool all_mapped = true;
    for (std::size_t i = 0; i < size; ++i) {
      tile[i] = locate(files, static_cast<std::uint64_t>(starts[done + i]));
      all_mapped &= tile[i].from != nullptr;
      for (std::uint64_t at = 0; at < std::min<std::uint64_t>(stride_, 256); at += 64) __builtin_prefetch(tile[i].from + at);
    }
    std::byte* const to = out + done * stride_;
    if (!all_mapped) {
      for (std::size_t i = 0; i < size; ++i) {
        if (tile[i].file != nullptr) {
          tile[i].file->read(tile[i].offset, {to + i * stride_, stride_});
        } else {
          copy_row(to + i * stride_, tile[i].from, stride_);
        }
      }
      continue;
    }
    const File* last = nullptr;
    auto work = [&] {
      for (std::size_t i = 0; i < size; ++i) copy_row(to + i * stride_, tile[i].from, stride_);
      for (std::size_t i = 0; i < size; ++i) {
        const File* const file = tile[i].file;
        if (file == nullptr || file == last) continue;
        last = file;
        (void)*static_cast<const volatile std::byte*>(file->data() + file->size() - 1);
      }
    };
    if (!run_guarded(work)) {
      for (std::size_t i = 0; i < size; ++i) {
        if (tile[i].file != nullptr && !tile[i].file->has_its_size()) cut(*tile[i].file);
      }
      cut(*tile[0].file);
    }
    for (std::size_t i = 0; i < size; ++i) {
      const File* const file = tile[i].file;
      if (file != nullptr && tile[i].offset + stride_ > file->size() / kPage * kPage && !file->has_its_size()) cut(*file);
    }
  }
}

void RowReader::read_run(Files& files, std::uint64_t start, std::uint64_t run, std::byte* out) const {
  while (run > 0) {
    const Piece piece = locate(files, start);
    const std::uint64_t rows = std::min(run, piece.rows_left);
    const std::span<std::byte> to{out, rows * stride_};
    if (piece.file == nullptr) {
      std::memcpy(to.data(), piece.from, to.size());
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
  Files& files = files_.get(parts_.size());
  in_slices(starts.size(), parts_.size(), open_files_, [&](std::size_t first, std::size_t count) {
    {
      const Files::Use use = files.use();
      in_pieces(count, run * stride_, pool, [&](std::size_t low, std::size_t high) {
        const std::int64_t* const from = starts.data() + first;
        std::byte* const to = out + first * run * stride_;
        if (run == 1) return read_rows(files, from + low, high - low, to + low * stride_);
        for (std::size_t i = low; i < high; ++i) {
          read_run(files, static_cast<std::uint64_t>(from[i]), run, to + i * run * stride_);
        }
      });
    }
    files.trim(open_files_, [](std::size_t) {});
  });
}

}  // namespace penstock
