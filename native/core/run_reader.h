// Records of different lengths that are runs of rows of a line: documents of tokens, spans of bytes in files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/copy.h"
#include "core/row_reader.h"
#include "core/thread_pool.h"
#include "core/varying_reader.h"

namespace penstock {

// Rows [start, start + rows) of a line; -1 rows for a record that is missing.
struct Run {
  std::int64_t start;
  std::int64_t rows;
};

// Where records are on a line. Safe to use from several threads.
class RunTable {
 public:
  virtual ~RunTable() = default;
  virtual std::uint64_t length() const = 0;
  // The runs of records, which exist. Throws CorruptError for one that is not on the line.
  virtual void find(std::span<const std::int64_t> records, Run* out) const = 0;
  // The same of arrays with ndim dimensions, whose shapes go to dims, ndim numbers each; with ndim 0 it is find.
  virtual void find_shaped(std::span<const std::int64_t> records, std::uint8_t ndim, Run* out, std::uint32_t* dims) const;
  // Whether the crc32c of the bytes of every record is known; and those of records that are not missing.
  virtual bool has_crcs() const { return false; }
  virtual void find_crcs(std::span<const std::int64_t>, std::uint32_t*) const {}
  // A record in an error: its file, and its number there.
  virtual std::string name(std::int64_t record) const { return "record " + std::to_string(record); }
};

// Record i has the rows [bounds[i], bounds[i + 1]). The bounds must outlive it.
class RisingBounds final : public RunTable {
 public:
  // Throws std::invalid_argument unless the bounds rise from 0 or more to at most `rows`.
  RisingBounds(std::span<const std::int64_t> bounds, std::uint64_t rows);

  std::uint64_t length() const override { return bounds_.size() - 1; }
  void find(std::span<const std::int64_t> records, Run* out) const override;

 private:
  std::span<const std::int64_t> bounds_;
};

// What records of a field must be.
struct RunChecks {
  std::uint64_t batch_bytes;     // the most that the records of a batch may have together
  std::uint64_t item_bytes = 1;  // sizes are multiples of it
  bool is_text = false;          // UTF-8
};

// Safe to use from several threads. The rows and the table must outlive it.
class RunReader final : public VaryingReader {
 public:
  RunReader(const RowReader& rows, const RunTable& table, const RunChecks& checks)
      : rows_(rows), table_(table), checks_(checks) {}

  void sizes(std::span<const std::int64_t> rows, std::uint8_t ndim, std::int64_t* sizes, std::uint32_t* dims) const override;
  void read(std::span<const std::int64_t> rows, const std::int64_t* starts, const std::int64_t* sizes,
            std::byte* out) const override {
    read(rows, starts, sizes, out, alone_);
  }
  void read(std::span<const std::int64_t> rows, const std::int64_t* starts, const std::int64_t* sizes, std::byte* out,
            ThreadPool& pool) const;
  void read_parts(std::span<const RecordPart> parts, std::byte* out) const override;
  std::uint64_t batch_bytes() const override { return checks_.batch_bytes; }

  // Records of exactly `stride` bytes: record i goes to out + places[i] * stride. A missing one is zeros, and present[places[i]],
  // which is 1 before, is 0.
  void read_fixed(std::span<const std::int64_t> rows, std::uint64_t stride, std::byte* out, std::uint8_t* present,
                  ThreadPool& pool, Places places = {}) const;

 private:
  struct Found;
  Found find(std::span<const std::int64_t> rows) const;
  bool checks_content() const { return checks_.is_text || table_.has_crcs(); }
  void check(std::int64_t row, std::span<const std::byte> content, std::uint32_t crc) const;

  const RowReader& rows_;
  const RunTable& table_;
  RunChecks checks_;
  mutable ThreadPool alone_{1};  // the thread of the ring reads itself
};

}  // namespace penstock
