// Scans: where the records of a file are, found by reading the file once, or only what is between the records.
//
// A scanner says which bytes it wants next, and gets them from a file, or from whoever reads an object at a URL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/file.h"

namespace penstock {

// What was found, as FileSpans of Python has it: rows of 2 words for each column, and then of a crc for each of those in the
// file.
struct ScannedSpans {
  std::vector<std::string> columns;
  std::size_t in_file = 0;
  bool has_crcs = false;
  std::vector<std::int64_t> table;
  std::vector<std::byte> memory;
};

// For one thread. Errors are CorruptError and those below it, and name the file.
class SpanScanner {
 public:
  SpanScanner(std::string name, std::uint64_t file_bytes) : name_(std::move(name)), file_bytes_(file_bytes) {}
  virtual ~SpanScanner() = default;

  bool is_done() const { return is_done_; }
  std::uint64_t next() const { return next_; }
  // How many bytes from there on it wants at least, though the file may end before.
  std::uint64_t need() const { return need_; }
  std::uint64_t file_bytes() const { return file_bytes_; }

  // Bytes of the file from next() on: need() of them or more, or all up to the end of the file.
  void feed(std::span<const std::byte> data);
  // Feeds itself from a file of this size.
  void scan(const std::string& path, const FileVersion& version);

  // To be called when it is done, once.
  virtual ScannedSpans take() = 0;

 protected:
  // Looks at the bytes from next() on; moves next(), or asks for more by need(), or is done. False if it wants other bytes.
  virtual bool step(std::span<const std::byte> data) = 0;

  std::string where(std::uint64_t at) const { return name_ + ", byte " + std::to_string(at); }

  std::string name_;
  std::uint64_t file_bytes_;
  std::uint64_t next_ = 0;
  std::uint64_t need_ = 1;
  bool is_done_ = false;
};

// TFRecord: u64 bytes, u32 masked crc32c of those 8 bytes, data, u32 masked crc32c of the data. The data is skipped.
class TFRecordScanner final : public SpanScanner {
 public:
  TFRecordScanner(std::string name, std::uint64_t file_bytes);
  ScannedSpans take() override;

 private:
  bool step(std::span<const std::byte> data) override;

  std::vector<std::int64_t> table_;
  bool in_record_ = false;  // the crc of the last record's data comes next
};

// tar: members are grouped into samples as WebDataset does it. A sample is a run of files whose names are equal up to the first
// dot of the base name; what follows the dot, in lower case, is the column. The keys are in memory, in the last column.
class TarScanner final : public SpanScanner {
 public:
  static constexpr const char* kKey = "__key__";

  TarScanner(std::string name, std::uint64_t file_bytes);
  ScannedSpans take() override;

 private:
  struct Header;
  struct Member {
    std::uint32_t column;
    std::int64_t start;
    std::int64_t size;
  };

  bool step(std::span<const std::byte> data) override;
  bool read_extension(const Header& header, std::span<const std::byte> content);
  void read_pax(std::string_view records, bool is_global);
  void add_file(std::string_view path, std::uint64_t start, std::uint64_t size);
  bool look_behind(std::span<const std::byte> data);
  [[noreturn]] void fail(const std::string& words) const;

  std::unordered_map<std::string, std::uint32_t> numbers_;
  std::vector<std::string> columns_;
  std::vector<std::size_t> seen_;  // of each column the number of samples when it came last
  std::vector<Member> members_;
  std::vector<std::size_t> samples_;  // where each begins among the members
  std::vector<std::size_t> keys_;     // where the key of each ends in the memory
  std::vector<std::byte> memory_;
  // What headers say of the next member.
  std::string long_name_;
  std::string pax_path_;
  std::uint64_t pax_size_ = 0;
  bool has_long_name_ = false;
  bool has_pax_path_ = false;
  bool has_pax_size_ = false;
  bool is_behind_ = false;  // the end of the archive was found
};

}  // namespace penstock
