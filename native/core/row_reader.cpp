#include "core/row_reader.h"

#include <algorithm>
#include <cstring>

#include "core/copy.h"
#include "core/pieces.h"

namespace penstock {
namespace {

constexpr std::size_t kTile = 64;

bool has_room(const RowPart& part, std::uint64_t stride) {
  std::uint64_t end = 0;
  if (__builtin_mul_overflow(part.rows, stride, &end)) return false;
  if (part.path.empty() && part.landing == nullptr) return part.memory != nullptr || part.rows == 0;
  return !__builtin_add_overflow(part.offset, end, &end) && end <= (part.landing ? part.landing->size() : part.file_bytes);
}

// Asks for the first bytes of a span that is going to be copied soon, and of the next page if it has some there: the processor
// finds out by itself about the rest of a page, but not about the next one. (Runs of 4 KiB that begin anywhere: a tenth faster.)
void prefetch_span(const std::byte* from, std::uint64_t bytes) {
  constexpr std::uint64_t kPage = 4096;
  prefetch_record(from, bytes);
  const std::uint64_t next = kPage - reinterpret_cast<std::uintptr_t>(from) % kPage;
  if (next < bytes) prefetch_record(from + next, bytes - next);
}

const std::byte* first_row(const Landing& landing, std::uint64_t offset) {
  const std::byte* const at = landing.data();
  if (at == nullptr) throw std::logic_error("the bytes are not in memory");
  return at + offset;
}

void copy_mapped(const File& file, std::uint64_t offset, std::span<std::byte> out) {
  bool whole = true;
  auto work = [&] {
    std::memcpy(out.data(), file.data() + offset, out.size());
    whole = file.is_whole();
  };
  const Fault fault = run_guarded(work);
  if (fault.happened || !whole) file.fail(fault.at);
}

// Says which of the files that were read (null: memory) failed, and why.
[[noreturn]] void fail(std::span<const File* const> files, const Fault& fault) {
  for (const File* const file : files) {
    if (file != nullptr && fault.at != nullptr && file->contains(fault.at)) file->fail(fault.at);
  }
  if (fault.at != nullptr) fail_in_memory(fault.at);
  for (const File* const file : files) {
    if (file == nullptr) continue;
    bool whole = true;
    auto look = [&] { whole = file->is_whole(); };
    const Fault again = run_guarded(look);
    if (again.happened || !whole) file->fail(again.at);
  }
  fail_in_memory(nullptr);
}

}  // namespace

// Where a row is. file is null for memory and landings; from is null for a file that is not mapped.
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
    if (!has_room(part, stride)) throw CorruptError((part.path.empty() ? "memory" : part.path) + ": no room for the rows");
    if (part.rows == 0) continue;
    std::uint64_t next = 0;
    if (__builtin_add_overflow(length_, part.rows, &next) || next > INT64_MAX) throw CorruptError("too many rows");
    const bool is_same = !parts_.empty() && !part.path.empty() && parts_.back().where.path == part.path &&
                         parts_.back().where.file_bytes == part.file_bytes && parts_.back().where.version == part.version;
    if (!is_same) ++num_files_;
    parts_.push_back({length_, num_files_ - 1, std::move(part)});
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
  const Part& part = parts_[part_of(row)];
  const std::uint64_t local = row - part.first_row;
  const std::uint64_t left = part.where.rows - local;
  if (part.where.memory != nullptr) return {part.where.memory + local * stride_, nullptr, 0, left};
  if (part.where.landing != nullptr) {
    return {first_row(*part.where.landing, part.where.offset) + local * stride_, nullptr, 0, left};
  }
  const File& file =
      files.get(part.file, [&] { return File::open(part.where.path, part.where.file_bytes, access_, part.where.version); });
  const std::uint64_t offset = part.where.offset + local * stride_;
  return {file.data() == nullptr ? nullptr : file.data() + offset, &file, offset, left};
}

// Spans a tile at a time: locate and prefetch, then copy, then see whether the files are still whole. span(i) gives the first
// row, the number of rows and where they go.
template <class SpanOf>
void RowReader::read_tiles(Files& files, std::size_t low, std::size_t high, const SpanOf& span_of) const {
  if (access_ == FileAccess::direct) return read_staged(files, low, high, span_of);
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
      if (simple) prefetch_span(tile[i].from, spans[i].rows * stride_);
    }
    if (!simple) {
      read_pieces(files, {spans, size});
      continue;
    }
    const File* used[kTile];
    std::size_t num_used = 0;
    for (std::size_t i = 0; i < size; ++i) {
      if (num_used == 0 || used[num_used - 1] != tile[i].file) used[num_used++] = tile[i].file;
    }
    bool whole = true;
    auto work = [&] {
      for (std::size_t i = 0; i < size; ++i) copy_record_bytes(spans[i].to, tile[i].from, spans[i].rows * stride_);
      for (std::size_t i = 0; i < num_used; ++i) whole &= used[i] == nullptr || used[i]->is_whole();
    };
    const Fault fault = run_guarded(work);
    if (fault.happened || !whole) fail({used, num_used}, fault);
  }
}

// Spans of files that are read directly: many at a time, long ones in pieces.
template <class SpanOf>
void RowReader::read_staged(Files& files, std::size_t low, std::size_t high, const SpanOf& span_of) const {
  Stage stage;
  std::vector<Stage::Want> wants;
  std::vector<std::byte*> places;
  std::uint64_t bytes = 0;
  const auto bring = [&] {
    stage.bring(wants);
    for (std::size_t i = 0; i < wants.size(); ++i) copy_record_bytes(places[i], wants[i].at, wants[i].bytes);
    stage.need_unwritten();
    wants.clear();
    places.clear();
    bytes = 0;
  };
  for (std::size_t i = low; i < high; ++i) {
    Span span = span_of(i);
    while (span.rows > 0) {
      const Piece piece = locate(files, span.start);
      const std::uint64_t rows = std::min(span.rows, piece.rows_left);
      if (piece.file == nullptr) throw std::logic_error("memory is not read directly");
      for (std::uint64_t done = 0; done < rows * stride_;) {
        const std::uint64_t some = std::min(rows * stride_ - done, Stage::kBytes);
        wants.push_back({piece.file, piece.offset + done, some});
        places.push_back(span.to + done);
        done += some;
        bytes += some;
        if (wants.size() == Stage::kWants || bytes >= Stage::kBytes) bring();
      }
      span = {span.start + rows, span.rows - rows, span.to + rows * stride_};
    }
  }
  bring();
}

// Spans that cross parts, or of files that are not mapped; of those it is asked afterwards whether they were written to
// meanwhile, which costs little next to a call for every span.
void RowReader::read_pieces(Files& files, std::span<const Span> spans) const {
  for (const Span& span : spans) read_run(files, span.start, span.rows, span.to);
  const File* last = nullptr;
  for (const Span& span : spans) {
    if (span.rows == 0) continue;
    const std::size_t end = part_of(span.start + span.rows - 1);
    for (std::size_t part = part_of(span.start); part <= end; ++part) {
      const File* const file = locate(files, parts_[part].first_row).file;
      if (file != nullptr && file != last && file->data() == nullptr) file->need_unwritten();
      last = file;
    }
  }
}

// Single rows of files that are mapped, or of memory, a tile at a time: locate and prefetch, copy, see whether the files are
// still whole. Returns how far it came: to a tile with a row in a file that is not mapped.
std::size_t RowReader::read_mapped(Files& files, std::span<const std::int64_t> rows, std::size_t low, std::size_t high,
                                   std::byte* out, const Places& places) const {
  const std::byte* from[kTile];
  const File* used[kTile];
  for (std::size_t done = low, size = 0; done < high; done += size) {
    size = std::min(kTile, high - done);
    std::size_t num_used = 0;
    std::uint64_t first = 0;
    std::uint64_t count = 0;
    const std::byte* base = nullptr;
    for (std::size_t i = 0; i < size; ++i) {
      const auto row = static_cast<std::uint64_t>(rows[done + i]);
      if (row - first >= count) {  // in another part than the row before, or the first
        const Part& part = parts_[part_of(row)];
        first = part.first_row;
        count = part.where.rows;
        const Piece piece = locate(files, first);
        if (piece.from == nullptr) return done;
        base = piece.from;
        used[num_used++] = piece.file;
      }
      from[i] = base + (row - first) * stride_;
      prefetch_record(from[i], stride_);
    }
    bool whole = true;
    auto work = [&] {
      copy_records(out, {from, size}, stride_, places.behind(done));
      for (std::size_t i = 0; i < num_used; ++i) whole &= used[i] == nullptr || used[i]->is_whole();
    };
    const Fault fault = run_guarded(work);
    if (fault.happened || !whole) fail({used, num_used}, fault);
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
      const Fault fault = run_guarded(copy);
      if (fault.happened) fail_in_memory(fault.at);
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

void RowReader::read(std::span<const std::int64_t> starts, std::uint64_t run, std::byte* out, ThreadPool& pool,
                     Places places) const {
  if (run == 0 || starts.empty()) return;
  const std::uint64_t bytes = run * stride_;
  const auto span_of = [=](std::size_t i) { return Span{static_cast<std::uint64_t>(starts[i]), run, out + places[i] * bytes}; };
  read_all(starts.size(), bytes, pool, [=, this](Files& files, std::size_t low, std::size_t high) {
    if (run == 1 && access_ != FileAccess::direct) low = read_mapped(files, starts, low, high, out, places);
    read_tiles(files, low, high, span_of);
  });
}

void RowReader::read_spans(std::span<const std::int64_t> starts, std::span<const std::int64_t> offsets, std::byte* out,
                           ThreadPool& pool) const {
  if (starts.empty()) return;
  const auto total = static_cast<std::uint64_t>(offsets.back() - offsets.front());
  const auto span_of = [=, this](std::size_t i) {
    const std::int64_t rows = starts[i] < 0 ? 0 : offsets[i + 1] - offsets[i];
    return Span{static_cast<std::uint64_t>(starts[i]), static_cast<std::uint64_t>(rows),
                out + static_cast<std::uint64_t>(offsets[i]) * stride_};
  };
  read_all(starts.size(), total * stride_ / starts.size() + 1, pool,
           [=, this](Files& files, std::size_t low, std::size_t high) { read_tiles(files, low, high, span_of); });
}

void RowReader::read_spans(std::span<const Span> spans, ThreadPool& pool) const {
  if (spans.empty()) return;
  std::uint64_t rows = 0;
  for (const Span& span : spans) rows += span.rows;
  read_all(spans.size(), rows * stride_ / spans.size() + 1, pool, [=, this](Files& files, std::size_t low, std::size_t high) {
    read_tiles(files, low, high, [=](std::size_t i) { return spans[i]; });
  });
}

template <class Read>
void RowReader::read_all(std::size_t count, std::uint64_t bytes_each, ThreadPool& pool, const Read& read) const {
  Files& files = files_.get(num_files_);
  keep_guard();
  in_slices(count, num_files_, open_files_, [&](std::size_t first, std::size_t size) {
    {
      const Files::Use use = files.use();
      in_pieces(size, bytes_each, pool, [&](std::size_t low, std::size_t high) { read(files, first + low, first + high); });
      if (look_.is_due()) files.look_at_some([](const File& file) { file.need_unwritten(); });
    }
    files.trim(open_files_, [](std::size_t) {});
  });
}

}  // namespace penstock
