// Records of Arrow arrays on a line of bytes: between offsets, or of one size; bits say which are missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/row_reader.h"
#include "core/run_reader.h"
#include "core/thread_pool.h"

namespace penstock {

// One array. Addresses are bytes of the line. Its first offset, or its first record if records have one size; its first value;
// and how many values there are: every offset is from 0 to that.
struct ArrowChunk {
  std::uint64_t records;
  std::uint64_t address;
  std::uint64_t values;
  std::uint64_t limit;
};

// What the records of a column are: `item_bytes` of a value, and of an offset `offset_bytes` (4 or 8). With 0 of the latter,
// every record is a value.
struct ArrowLayout {
  std::uint32_t offset_bytes;
  std::uint64_t item_bytes;
};

// A column: its arrays, one after the other. Immutable; safe to use from several threads. The line must outlive it.
class ArrowRuns final : public RunTable {
 public:
  // bits: of every array as many numbers as there are levels of structs, those of one array together: the number of the bit on
  // the line that says whether the first record is there, or -1 if all are. Throws std::invalid_argument for arrays that are not
  // on the line.
  ArrowRuns(const RowReader& line, std::vector<ArrowChunk> chunks, std::vector<std::int64_t> bits, const ArrowLayout& layout);

  std::uint64_t length() const override { return firsts_.back(); }
  // Throws CorruptError for offsets that do not rise within their array.
  void find(std::span<const std::int64_t> records, Run* out) const override;

 private:
  struct Tile;
  void read_presence(std::span<const std::int64_t> records, Tile& tile) const;

  const RowReader& line_;
  std::vector<ArrowChunk> chunks_;
  std::vector<std::int64_t> bits_;
  std::size_t levels_;
  ArrowLayout layout_;
  std::vector<std::uint64_t> firsts_{0};  // the first record of each array, and the number of all
  mutable ThreadPool alone_{1};
};

}  // namespace penstock
