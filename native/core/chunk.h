// A chunk file: rows of one or more fields, immutable. docs/reference/format.md says the same in words.
//
//   chunk  = header | field regions | index arrays | entries | tail          all little-endian
//   header = magic 8 | version u32 | 0 u32 | data set 16 | writer 16 | number u32 | 0 u32 | 0 u32 | crc32c u32      64 bytes
//   region = the field's records one after the other; begins at a multiple of 64
//   entry  = field u32 | codec u8 | ndim u8 | flags u16 | stride u64 | data offset u64 | data bytes u64
//            | rows per page u32 | 0 u32 | array reference 24 x 6                                                  184 bytes
//   array reference = offset u64 | bytes u64 | crc32c u32 | 0 u32
//            pages       u32 x pages      crc32c of each page of the region
//            ends        u64 x rows       where each record ends in the region; absent for raw records of one size
//            lengths     u32 x rows       decoded sizes; absent where all are `stride`, or raw
//            dims        u32 x ndim rows  shapes of records with two dimensions or more
//            validity    bits, rows       1: present; absent if no record is missing
//            dictionary  bytes            zstd dictionary
//   tail   = rows u64 | entries offset u64 | file bytes u64 | fields u32 | version u32 | data set 16 | 0 u32
//            | crc32c u32 of entries and tail up to here | magic 8                                                  64 bytes
//
// The file has a multiple of 8 bytes, so that the last magic is an aligned word. A page is `rows per page` consecutive records.
// Checksums form a chain: the manifest has the tail's crc, which covers the entries, which cover the index arrays, which cover
// the pages.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/codec.h"
#include "core/file.h"

namespace penstock {

using DatasetId = std::array<std::byte, 16>;

inline constexpr std::uint32_t kChunkVersion = 1;
inline constexpr std::array<char, 8> kChunkMagic{'P', 'E', 'N', 'C', 'H', 'U', 'N', 'K'};
inline constexpr std::array<char, 8> kChunkTailMagic{'K', 'N', 'U', 'H', 'C', 'N', 'E', 'P'};
inline constexpr auto kTailWord = std::bit_cast<std::uint64_t>(kChunkTailMagic);
static_assert(kChunkTailMagic == kFileMark);  // either is the last word of the last page: a chunk has a multiple of 8 bytes
inline constexpr std::size_t kChunkHeaderBytes = 64;
inline constexpr std::size_t kChunkTailBytes = 64;
inline constexpr std::size_t kChunkEntryBytes = 184;
inline constexpr std::size_t kRegionAlignment = 64;
inline constexpr std::uint16_t kHasValidity = 1;
inline constexpr std::uint32_t kMaxRows = 0xFFFF'FFFF;
inline constexpr std::uint32_t kMaxFields = 4096;
inline constexpr std::uint64_t kMaxRecordBytes = 0xFFFF'FFFF;  // of a decoded record: its length is a u32

// The names of fields by number, for messages.
using FieldNames = std::unordered_map<std::uint32_t, std::string>;

// "field 'caption'", or "field 3" where the name is not known.
std::string field_in_words(const FieldNames* names, std::uint32_t number);

// What the manifest says of a chunk.
struct ChunkFact {
  std::string path;
  std::uint64_t bytes;
  std::uint32_t rows;
  std::uint32_t crc;
  std::shared_ptr<const Landing> landing = nullptr;  // where the bytes are, instead of in a file
};

// One field of an open chunk. The arrays lie in the map (or in memory where files are read by pread) and were checked when the
// chunk was opened; a record's place is checked again at every use, because a mapped file can change under us.
struct ChunkField {
  std::uint32_t number = 0;
  Codec codec = Codec::raw;
  std::uint8_t ndim = 0;
  std::uint64_t stride = 0;
  std::uint64_t data_offset = 0;
  std::uint64_t data_bytes = 0;
  std::uint32_t rows_per_page = 1;
  std::uint32_t num_pages = 0;
  const std::byte* pages = nullptr;
  const std::byte* ends = nullptr;
  const std::byte* lengths = nullptr;
  const std::byte* dims = nullptr;
  const std::byte* validity = nullptr;
  std::unique_ptr<Dictionary> dictionary;
  std::unique_ptr<std::atomic<std::uint64_t>[]> verified;  // a bit per page whose crc was seen to be right

  struct Extent {
    std::uint64_t offset;  // in the region
    std::uint64_t bytes;
  };

  bool is_plain() const { return ends == nullptr; }
  bool present(std::uint64_t row) const;
  // False if the index names bytes outside the region.
  bool extent(std::uint64_t row, Extent& out) const;
  std::uint64_t decoded_bytes(std::uint64_t row, const Extent& extent) const;
  bool is_verified(std::uint64_t page) const {
    return (verified[page / 64].load(std::memory_order_relaxed) >> (page % 64) & 1) != 0;
  }
  void set_verified(std::uint64_t page) const {
    verified[page / 64].fetch_or(std::uint64_t{1} << (page % 64), std::memory_order_relaxed);
  }
};

// An open chunk. Immutable but for the marks of verified pages; safe to use from several threads.
class Chunk {
 public:
  // Parses and checks header, tail, entries and index arrays; throws CorruptError naming the file and what is wrong. Those bytes
  // of a landing must be in memory, and stay there while the chunk is open.
  static std::shared_ptr<const Chunk> open(const ChunkFact& fact, const DatasetId& dataset, FileAccess access,
                                           std::shared_ptr<const FieldNames> names = nullptr);

  const std::string& path() const { return file_->path(); }
  // Whether a mapped file still is what it was; to be asked under guard, after copying.
  bool is_whole() const {
    return file_->data() == nullptr || *reinterpret_cast<const volatile std::uint64_t*>(tail()) == kTailWord;
  }
  // A word that is kTailWord unless the file was cut: the last of a landing, and what File looks at of a map.
  const std::byte* tail() const { return file_->is_landed() ? file_->data() + file_->size() - 8 : file_->sentinel(); }
  std::uint32_t rows() const { return rows_; }
  const std::shared_ptr<const File>& file() const { return file_; }
  const std::vector<ChunkField>& fields() const { return fields_; }
  // The field with this number, or null.
  const ChunkField* field(std::uint32_t number) const { return number < by_number_.size() ? by_number_[number] : nullptr; }

  // The bytes of a page, which its crc covers; throws CorruptError if they lie outside the field's region.
  ChunkField::Extent page_extent(const ChunkField& field, std::uint64_t page) const;
  // Checks the crc of one page of a field; throws CorruptError naming file, field, rows and the record that was wanted, if any.
  void verify_page(const ChunkField& field, std::uint64_t page, std::optional<std::uint64_t> record = std::nullopt) const;
  // The same of bytes that were read already.
  void check_page(const ChunkField& field, std::uint64_t page, std::span<const std::byte> bytes,
                  std::optional<std::uint64_t> record) const;
  // A field of this chunk, for messages.
  std::string in_words(std::uint32_t field) const { return field_in_words(names_.get(), field); }

 private:
  std::string where(const ChunkField& field, std::uint64_t page, std::optional<std::uint64_t> record = std::nullopt) const;
  Chunk(std::shared_ptr<const File> file, std::uint32_t rows, std::shared_ptr<const FieldNames> names)
      : file_(std::move(file)), rows_(rows), names_(std::move(names)) {}
  void parse_entry(std::span<const std::byte> entry, std::uint64_t limit);
  const std::byte* load_array(std::span<const std::byte> reference, std::uint64_t expected_bytes, std::uint64_t limit,
                              const char* name);

  std::shared_ptr<const File> file_;
  std::uint32_t rows_;
  std::shared_ptr<const FieldNames> names_;
  std::vector<ChunkField> fields_;
  std::vector<const ChunkField*> by_number_;
  std::uint64_t array_bytes_ = 0;  // of all index arrays so far; several may not name the same bytes without end
  std::vector<std::unique_ptr<std::byte[]>> loaded_;  // index arrays of files that are not mapped
};

// Where the index of a chunk begins, of which `end` are the last bytes: what Chunk::open reads is there and after, but for the
// header. An answer before the bytes given asks for more of them, from there on; then to be called again.
std::uint64_t chunk_index_start(std::span<const std::byte> end, std::uint64_t file_bytes, const std::string& path);

}  // namespace penstock
