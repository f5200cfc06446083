// Where the fields of records are in files: a table for each file, in memory or in a sidecar that is mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/run_reader.h"

namespace penstock {

// Memory, which may be a map, and the crc32c of its pages: each is compared when it is first needed. Without crcs all is
// believed.
struct CheckedPages {
  std::span<const std::byte> bytes;
  std::span<const std::uint32_t> crcs = {};
  std::uint8_t* checked = nullptr;  // a flag for each page
  std::size_t page_bytes = 1;

  // The first page of [low, high), which is within the bytes, that is damaged, or -1. To be asked under guard.
  std::int64_t bad_page(std::uint64_t low, std::uint64_t high) const;
};

// One file. A record has `words` numbers (int64) in the table: of every column the first byte and the number of bytes, -1 for one
// that is missing; then, of the first of them, the crc32c of the bytes. The columns are in the file, or in `memory`.
struct SpanPart {
  std::string name;
  std::uint64_t file_bytes;
  std::uint64_t records;
  std::uint32_t words;
  CheckedPages table;
  CheckedPages memory;
  std::string sidecar;  // where table and memory come from
};

// Immutable but for the flags of pages; safe to use from several threads. Memory must outlive it.
class SpanTable {
 public:
  explicit SpanTable(std::vector<SpanPart> parts);

  struct Extent {
    std::int64_t part;
    std::int64_t low;
    std::int64_t high;
  };

  std::uint64_t length() const { return firsts_.back(); }
  std::span<const SpanPart> parts() const { return parts_; }
  std::size_t part_of(std::uint64_t record) const;
  std::uint64_t first(std::size_t part) const { return firsts_[part]; }
  std::string name(std::int64_t record) const;

  // The bytes of files between which the records [start, stop) are, file by file: of the columns at words[part * columns + c]
  // (-1: not there).
  std::vector<Extent> extents(std::span<const std::int64_t> starts, std::span<const std::int64_t> stops,
                              std::span<const std::int32_t> words) const;

 private:
  void add_extents(std::size_t number, std::uint64_t first, std::uint64_t last, std::span<const std::int32_t> words,
                   std::vector<Extent>& found) const;

  std::vector<SpanPart> parts_;
  std::vector<std::uint64_t> firsts_;  // the first record of each part, and the number of all
};

// One field: in each part the columns at `words` (-1: all are missing there) and their crcs at `crc_words` (-1: none). The line
// is that of all bytes of the files, or of the memories, one after the other. The table must outlive it.
class SpanColumn final : public RunTable {
 public:
  SpanColumn(const SpanTable& table, std::vector<std::int32_t> words, std::vector<std::int32_t> crc_words, bool in_memory);

  std::uint64_t length() const override { return table_.length(); }
  void find(std::span<const std::int64_t> records, Run* out) const override;
  bool has_crcs() const override { return has_crcs_; }
  void find_crcs(std::span<const std::int64_t> records, std::uint32_t* out) const override;
  std::string name(std::int64_t record) const override { return table_.name(record); }

 private:
  struct Place;
  void locate(std::span<const std::int64_t> records, Place* out) const;

  const SpanTable& table_;
  std::vector<std::int32_t> words_;
  std::vector<std::int32_t> crc_words_;
  std::vector<std::int64_t> bases_;  // of the bytes of each part on the line
  bool in_memory_;
  bool has_crcs_;
};

}  // namespace penstock
