// Records whose columns are packed: the sizes of some of them, then the bytes of all, one column behind the other. Files of such
// records begin with their number and a table of where each begins: MDS shards and LitData chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/row_reader.h"
#include "core/run_reader.h"
#include "core/thread_pool.h"

namespace penstock {

// One column: the bytes of every value, or -1 if they vary; and whether the head of a record has its size (u32).
struct PackedSize {
  std::int64_t bytes;
  bool is_told;
};

// One file on a line of bytes: it begins at `base` there and has `bytes` of them. `offsets` (u32, one more than records) say
// where in the file records begin and end. If they are null, they are read from byte `table` of the file on.
struct PackedFile {
  std::string name;
  std::uint64_t base;
  std::uint64_t bytes;
  std::uint64_t records;
  std::uint64_t table;
  const std::uint32_t* offsets = nullptr;
};

// Immutable; safe to use from several threads. The line and memory must outlive it.
class PackedRecords {
 public:
  PackedRecords(const RowReader& line, std::vector<PackedFile> files, std::vector<PackedSize> columns);

  std::uint64_t length() const { return firsts_.back(); }
  std::size_t num_columns() const { return columns_.size(); }
  const RowReader& line() const { return line_; }
  // A record in an error: its file, and its number there.
  std::string name(std::int64_t record) const;

  // Where whole records are on the line. Throws CorruptError for one that is not in its file, behind the table.
  void find(std::span<const std::int64_t> records, Run* out) const;
  // Where a column of records is on the line. Throws CorruptError if the columns of one have not as many bytes as the record.
  void find(std::size_t column, std::span<const std::int64_t> records, Run* out) const;

 private:
  std::size_t file_of(std::uint64_t record) const;

  const RowReader& line_;
  std::vector<PackedFile> files_;
  std::vector<PackedSize> columns_;
  std::size_t told_ = 0;
  std::vector<std::uint64_t> firsts_;  // the first record of each file, and the number of all
  mutable ThreadPool alone_{1};
};

// What is before the values of an array.
enum class PackedForm : std::uint8_t {
  plain,      // nothing
  mds,        // u8: dimensions << 2 | log2 of the bytes of a size; sizes
  mds_typed,  // u8: type; then as mds
  words,      // u32: type, dimensions, sizes; in either byte order
};

// Arrays of one type and number of dimensions, or plain bytes.
struct PackedArray {
  PackedForm form = PackedForm::plain;
  std::uint32_t code = 0;  // of the type
  std::uint8_t ndim = 0;
  std::uint32_t item_bytes = 1;
};

// One column as a field. The records must outlive it.
class PackedColumn final : public RunTable {
 public:
  PackedColumn(const PackedRecords& records, std::size_t column, const PackedArray& array);

  std::uint64_t length() const override { return records_.length(); }
  void find(std::span<const std::int64_t> records, Run* out) const override { find_shaped(records, 0, out, nullptr); }
  void find_shaped(std::span<const std::int64_t> records, std::uint8_t ndim, Run* out, std::uint32_t* dims) const override;
  std::string name(std::int64_t record) const override { return records_.name(record); }

 private:
  struct Head;
  Head parse(std::int64_t record, std::span<const std::byte> bytes) const;

  const PackedRecords& records_;
  const RowReader& line_;
  std::size_t column_;
  PackedArray array_;
  mutable ThreadPool alone_{1};
};

}  // namespace penstock
