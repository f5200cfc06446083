#include "core/chunk.h"

#include <algorithm>
#include <cstring>

#include "core/crc32c.h"
#include "core/little_endian.h"

namespace penstock {
namespace {

[[noreturn]] void corrupt(const std::string& path, const std::string& what) { throw CorruptError(path + ": " + what); }

void need(bool holds, const std::string& path, const char* what) {
  if (!holds) corrupt(path, what);
}

std::string in_words(std::uint64_t expected, std::uint64_t found) {
  return "expected " + std::to_string(expected) + ", found " + std::to_string(found);
}

struct Tail {
  std::uint64_t rows;
  std::uint64_t entries_offset;
  std::uint32_t num_fields;
};

void check_header(const File& file, const DatasetId& dataset) {
  std::array<std::byte, kChunkHeaderBytes> header;
  file.read(0, header);
  need(std::memcmp(header.data(), kChunkMagic.data(), 8) == 0, file.path(), "not a chunk: the first 8 bytes are not the magic");
  const auto version = load_le<std::uint32_t>(&header[8]);
  if (version != kChunkVersion) corrupt(file.path(), "chunk version: " + in_words(kChunkVersion, version));
  need(load_le<std::uint32_t>(&header[60]) == crc32c(std::span(header).first(60)), file.path(),
       "the crc of the header does not match");
  need(std::memcmp(&header[16], dataset.data(), 16) == 0, file.path(), "the chunk belongs to another data set");
}

Tail check_tail(const File& file, const ChunkFact& fact, const DatasetId& dataset) {
  std::array<std::byte, kChunkTailBytes> tail;
  file.read(file.size() - kChunkTailBytes, tail);
  need(std::memcmp(&tail[56], kChunkTailMagic.data(), 8) == 0, file.path(), "the last 8 bytes are not the magic");
  const Tail found{load_le<std::uint64_t>(&tail[0]), load_le<std::uint64_t>(&tail[8]), load_le<std::uint32_t>(&tail[24])};
  if (load_le<std::uint32_t>(&tail[52]) != fact.crc) corrupt(file.path(), "the chunk's crc is not the one the manifest names");
  need(load_le<std::uint64_t>(&tail[16]) == file.size(), file.path(), "the tail names another file size");
  need(load_le<std::uint32_t>(&tail[28]) == kChunkVersion, file.path(), "the tail names another version");
  need(std::memcmp(&tail[32], dataset.data(), 16) == 0, file.path(), "the tail names another data set");
  if (found.rows != fact.rows) corrupt(file.path(), "rows: " + in_words(fact.rows, found.rows));
  const std::uint64_t entries = std::uint64_t{found.num_fields} * kChunkEntryBytes;
  need(found.num_fields <= kMaxFields && found.entries_offset >= kChunkHeaderBytes && entries <= file.size() - kChunkTailBytes &&
           found.entries_offset == file.size() - kChunkTailBytes - entries,
       file.path(), "the entries do not lie before the tail");
  return found;
}

}  // namespace

bool ChunkField::present(std::uint64_t row) const {
  return validity == nullptr || (static_cast<unsigned>(validity[row / 8]) >> (row % 8) & 1) != 0;
}

bool ChunkField::extent(std::uint64_t row, Extent& out) const {
  if (ends == nullptr) {
    out = {row * stride, stride};
    return true;
  }
  const std::uint64_t start = row == 0 ? 0 : load_le<std::uint64_t>(ends + 8 * (row - 1));
  const auto end = load_le<std::uint64_t>(ends + 8 * row);
  out = {start, end - start};
  return start <= end && end <= data_bytes;
}

std::uint64_t ChunkField::decoded_bytes(std::uint64_t row, const Extent& extent) const {
  if (lengths != nullptr) return load_le<std::uint32_t>(lengths + 4 * row);
  return codec == Codec::raw ? extent.bytes : present(row) ? stride : 0;
}

std::shared_ptr<const Chunk> Chunk::open(const ChunkFact& fact, const DatasetId& dataset, FileAccess access) {
  std::shared_ptr<const File> file = File::open(fact.path, fact.bytes, access);
  need(file->size() >= kChunkHeaderBytes + kChunkTailBytes, file->path(), "too short for a chunk");
  need(file->size() % 8 == 0, file->path(), "a chunk has a multiple of 8 bytes");
  check_header(*file, dataset);
  const Tail tail = check_tail(*file, fact, dataset);
  std::vector<std::byte> footer(file->size() - tail.entries_offset);
  file->read(tail.entries_offset, footer);
  const std::size_t covered = footer.size() - kChunkTailBytes + 52;
  need(crc32c(std::span(footer).first(covered)) == fact.crc, file->path(), "the crc of the entries does not match");
  auto chunk = std::shared_ptr<Chunk>(new Chunk(file, fact.rows));
  for (std::uint32_t i = 0; i < tail.num_fields; ++i) {
    chunk->parse_entry(std::span(footer).subspan(i * kChunkEntryBytes, kChunkEntryBytes), tail.entries_offset);
  }
  for (const ChunkField& field : chunk->fields_) {
    if (field.number >= chunk->by_number_.size()) chunk->by_number_.resize(field.number + 1, nullptr);
    chunk->by_number_[field.number] = &field;
  }
  return chunk;
}

void Chunk::parse_entry(std::span<const std::byte> entry, std::uint64_t limit) {
  ChunkField field;
  field.number = load_le<std::uint32_t>(&entry[0]);
  const auto codec = static_cast<std::uint8_t>(entry[4]);
  field.ndim = static_cast<std::uint8_t>(entry[5]);
  const auto flags = load_le<std::uint16_t>(&entry[6]);
  field.stride = load_le<std::uint64_t>(&entry[8]);
  field.data_offset = load_le<std::uint64_t>(&entry[16]);
  field.data_bytes = load_le<std::uint64_t>(&entry[24]);
  field.rows_per_page = load_le<std::uint32_t>(&entry[32]);
  const bool again =
      std::any_of(fields_.begin(), fields_.end(), [&](const ChunkField& other) { return other.number == field.number; });
  need(!again && field.number < kMaxFields, path(), "a field stands twice in the entries, or has a number out of range");
  need(codec < kNumCodecs && flags <= kHasValidity && field.rows_per_page > 0, path(), "an entry has an unknown codec or flag");
  field.codec = static_cast<Codec>(codec);
  need(field.data_offset <= limit && field.data_bytes <= limit - field.data_offset && field.data_offset % kRegionAlignment == 0,
       path(), "a field's region lies outside the file");
  const std::uint64_t rows = rows_;
  field.num_pages = static_cast<std::uint32_t>((rows + field.rows_per_page - 1) / field.rows_per_page);
  const auto reference = [&](std::size_t i) { return entry.subspan(40 + 24 * i, 24); };
  const auto named = [&](std::size_t i) { return load_le<std::uint64_t>(&reference(i)[8]) > 0; };
  field.pages = load_array(reference(0), 4 * std::uint64_t{field.num_pages}, limit, "page checksums");
  const bool has_ends = named(1);
  if (has_ends) field.ends = load_array(reference(1), 8 * rows, limit, "ends");
  if (named(2)) field.lengths = load_array(reference(2), 4 * rows, limit, "lengths");
  if (field.ndim > 0) field.dims = load_array(reference(3), 4 * rows * field.ndim, limit, "shapes");
  if ((flags & kHasValidity) != 0) field.validity = load_array(reference(4), (rows + 7) / 8, limit, "validity");
  if (!has_ends && rows > 0) {
    std::uint64_t expected = 0;
    need(field.codec == Codec::raw && field.lengths == nullptr && !__builtin_mul_overflow(rows, field.stride, &expected) &&
             expected == field.data_bytes,
         path(), "a field of plain records has another size than its records");
  }
  const std::uint64_t dictionary_bytes = load_le<std::uint64_t>(&reference(5)[8]);
  if (dictionary_bytes > 0) {
    const std::byte* bytes = load_array(reference(5), dictionary_bytes, limit, "dictionary");
    std::vector<std::byte> copy(dictionary_bytes);
    std::copy(bytes, bytes + dictionary_bytes, copy.begin());
    field.dictionary = Dictionary::for_reading(copy);
    need(field.dictionary != nullptr, path(), "the dictionary of a field is not one");
  }
  field.verified = std::make_unique<std::atomic<std::uint64_t>[]>((field.num_pages + 63) / 64);
  fields_.push_back(std::move(field));
}

const std::byte* Chunk::load_array(std::span<const std::byte> reference, std::uint64_t expected_bytes, std::uint64_t limit,
                                   const char* name) {
  const auto offset = load_le<std::uint64_t>(&reference[0]);
  const auto bytes = load_le<std::uint64_t>(&reference[8]);
  const auto crc = load_le<std::uint32_t>(&reference[16]);
  if (bytes != expected_bytes || offset > limit || bytes > limit - offset || offset % 8 != 0) {
    corrupt(path(), std::string("the array of ") + name + " lies outside the file or has another size than its rows need");
  }
  array_bytes_ += bytes;
  if (array_bytes_ > limit) corrupt(path(), "the index arrays overlap");
  static constexpr std::byte kNothing{};
  if (bytes == 0) return &kNothing;
  const std::byte* array = nullptr;
  if (file_->data() != nullptr) {
    array = file_->data() + offset;
  } else {
    loaded_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
    file_->read(offset, {loaded_.back().get(), bytes});
    array = loaded_.back().get();
  }
  std::uint32_t found = 0;
  auto work = [&] { found = crc32c({array, bytes}); };
  if (!run_guarded(work)) throw TruncatedError(path() + ": the file was cut while it was read");
  if (found != crc) corrupt(path(), std::string("the crc of the array of ") + name + " does not match");
  return array;
}

void Chunk::verify_page(const ChunkField& field, std::uint64_t page) const {
  const std::uint64_t first = page * field.rows_per_page;
  const std::uint64_t last = std::min<std::uint64_t>(rows_, first + field.rows_per_page) - 1;
  ChunkField::Extent head{};
  ChunkField::Extent end{};
  const bool placed = field.extent(first, head) && field.extent(last, end) && end.offset + end.bytes >= head.offset;
  const auto where = [&] {
    return "field " + std::to_string(field.number) + ", rows " + std::to_string(first) + " to " + std::to_string(last);
  };
  if (!placed) corrupt(path(), where() + ": a record lies outside the field's region");
  const std::uint64_t bytes = end.offset + end.bytes - head.offset;
  std::uint32_t found = 0;
  if (file_->data() != nullptr) {
    found = crc32c({file_->data() + field.data_offset + head.offset, bytes});
  } else {
    std::vector<std::byte> copy(bytes);
    file_->read(field.data_offset + head.offset, copy);
    found = crc32c(copy);
  }
  if (found != load_le<std::uint32_t>(field.pages + 4 * page)) corrupt(path(), where() + ": the crc does not match");
  field.set_verified(page);
}

}  // namespace penstock
