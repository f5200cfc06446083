// Rows of one size, in many files, in memory or in landings, read by number: row -> part -> bytes in the caller's memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/copy.h"
#include "core/divider.h"
#include "core/file.h"
#include "core/fork_local.h"
#include "core/landing.h"
#include "core/pieces.h"
#include "core/slot_cache.h"
#include "core/thread_pool.h"

namespace penstock {

// A run of rows that lie one after the other.
struct RowPart {
  std::string path;          // empty: they lie in memory or in a landing
  std::uint64_t file_bytes;  // the whole size of the file
  std::uint64_t offset;      // of the first row in the file or landing
  std::uint64_t rows;
  const std::byte* memory = nullptr;
  std::shared_ptr<const Landing> landing = nullptr;  // its bytes must be in memory while they are read
  FileVersion version = {};                          // of the file; whatever the name stands for is taken if it is not known
};

// Immutable but for caches; safe to use from several threads and after fork. Memory must outlive the reader.
class RowReader {
 public:
  // Rows [start, start + rows), and where they go.
  struct Span {
    std::uint64_t start;
    std::uint64_t rows;
    std::byte* to;
  };

  // Nothing is opened before the first read; a part whose rows do not fit its file or landing is refused.
  RowReader(std::vector<RowPart> parts, std::uint64_t stride, FileAccess access, std::uint64_t open_files = kOpenFiles);

  std::uint64_t length() const { return length_; }
  std::uint64_t stride() const { return stride_; }

  // For each start, rows [start, start + run) go to out + places[i] * run * stride. Runs may cross parts, and must end by
  // length().
  void read(std::span<const std::int64_t> starts, std::uint64_t run, std::byte* out, ThreadPool& pool, Places places = {}) const;
  // Runs of different lengths: rows [start, start + offsets[i + 1] - offsets[i]) go to out + offsets[i] * stride. A run whose
  // start is below 0 is left out: nothing is written in its place.
  void read_spans(std::span<const std::int64_t> starts, std::span<const std::int64_t> offsets, std::byte* out,
                  ThreadPool& pool) const;
  // Runs of different lengths that go anywhere.
  void read_spans(std::span<const Span> spans, ThreadPool& pool) const;

 private:
  struct Part {
    std::uint64_t first_row;
    std::size_t file;  // number of its file: parts of one path, one after the other, share it
    RowPart where;
  };
  struct Piece;
  using Files = SlotCache<File>;

  std::size_t part_of(std::uint64_t row) const;
  Piece locate(Files& files, std::uint64_t row) const;
  template <class Read>
  void read_all(std::size_t count, std::uint64_t bytes_each, ThreadPool& pool, const Read& read) const;
  template <class SpanOf>
  void read_tiles(Files& files, std::size_t low, std::size_t high, const SpanOf& span_of) const;
  std::size_t read_mapped(Files& files, std::span<const std::int64_t> rows, std::size_t low, std::size_t high, std::byte* out,
                          const Places& places) const;
  template <class SpanOf>
  void read_staged(Files& files, std::size_t low, std::size_t high, const SpanOf& span_of) const;
  void read_pieces(Files& files, std::span<const Span> spans) const;
  void read_run(Files& files, std::uint64_t start, std::uint64_t run, std::byte* out) const;

  std::vector<Part> parts_;  // those with rows
  std::uint64_t stride_;
  std::uint64_t length_ = 0;
  std::size_t num_files_ = 0;
  std::optional<Divider> even_rows_;  // rows of every part but the last, if they are all alike
  FileAccess access_;
  std::uint64_t open_files_;
  mutable ForkLocal<Files> files_;
  mutable Interval look_;  // at files that may have been written to
};

}  // namespace penstock
