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
  std::uint32_t crc;
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

void check_size(std::uint64_t bytes, const std::string& path) {
  need(bytes >= kChunkHeaderBytes + kChunkTailBytes, path, "too short for a chunk");
  need(bytes % 8 == 0, path, "a chunk has a multiple of 8 bytes");
}

// What a tail says of a file of this size.
Tail parse_tail(std::span<const std::byte> tail, std::uint64_t bytes, const std::string& path) {
  need(std::memcmp(&tail[56], kChunkTailMagic.data(), 8) == 0, path, "the last 8 bytes are not the magic");
  const Tail found{load_le<std::uint64_t>(&tail[0]), load_le<std::uint64_t>(&tail[8]), load_le<std::uint32_t>(&tail[24]),
                   load_le<std::uint32_t>(&tail[52])};
  need(load_le<std::uint64_t>(&tail[16]) == bytes, path, "the tail names another file size");
  need(load_le<std::uint32_t>(&tail[28]) == kChunkVersion, path, "the tail names another version");
  const std::uint64_t entries = std::uint64_t{found.num_fields} * kChunkEntryBytes;
  need(found.num_fields <= kMaxFields && found.entries_offset >= kChunkHeaderBytes && entries <= bytes - kChunkTailBytes &&
           found.entries_offset == bytes - kChunkTailBytes - entries,
       path, "the entries do not lie before the tail");
  return found;
}

Tail check_tail(const File& file, const ChunkFact& fact, const DatasetId& dataset) {
  std::array<std::byte, kChunkTailBytes> tail;
  file.read(file.size() - kChunkTailBytes, tail);
  const Tail found = parse_tail(tail, file.size(), file.path());
  if (found.crc != fact.crc) corrupt(file.path(), "the chunk's crc is not the one the manifest names");
  need(std::memcmp(&tail[32], dataset.data(), 16) == 0, file.path(), "the tail names another data set");
  if (found.rows != fact.rows) corrupt(file.path(), "rows: " + in_words(fact.rows, found.rows));
  return found;
}

// Entries and tail.
void check_footer(std::span<const std::byte> footer, std::uint32_t crc, const std::string& path) {
  need(crc32c(footer.first(footer.size() - kChunkTailBytes + 52)) == crc, path, "the crc of the entries does not match");
}

constexpr std::size_t kNumArrays = 6;

std::span<const std::byte> array_reference(std::span<const std::byte> entry, std::size_t i) {
  return entry.subspan(40 + 24 * i, 24);
}

}  // namespace

std::string field_in_words(const FieldNames* names, std::uint32_t number) {
  if (names != nullptr) {
    const auto found = names->find(number);
    if (found != names->end()) return "field '" + found->second + "'";
  }
  return "field " + std::to_string(number);
}

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

std::shared_ptr<const Chunk> Chunk::open(const ChunkFact& fact, const DatasetId& dataset, FileAccess access,
                                         std::shared_ptr<const FieldNames> names) {
  std::shared_ptr<const File> file = fact.landing == nullptr ? File::open(fact.path, fact.bytes, access, {}, Above::no_link)
                                                             : File::open(fact.path, fact.bytes, fact.landing);
  check_size(file->size(), file->path());
  check_header(*file, dataset);
  const Tail tail = check_tail(*file, fact, dataset);
  std::vector<std::byte> footer(file->size() - tail.entries_offset);
  file->read(tail.entries_offset, footer);
  check_footer(footer, fact.crc, file->path());
  auto chunk = std::shared_ptr<Chunk>(new Chunk(file, fact.rows, std::move(names)));
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
  need(!again && field.number < kMaxFields, path(), "a field is there twice in the entries, or has a number out of range");
  need(codec < kNumCodecs && flags <= kHasValidity && field.rows_per_page > 0, path(), "an entry has an unknown codec or flag");
  field.codec = static_cast<Codec>(codec);
  need(field.data_offset <= limit && field.data_bytes <= limit - field.data_offset && field.data_offset % kRegionAlignment == 0,
       path(), "a field's region is outside the file");
  const std::uint64_t rows = rows_;
  field.num_pages = static_cast<std::uint32_t>((rows + field.rows_per_page - 1) / field.rows_per_page);
  const auto reference = [&](std::size_t i) { return array_reference(entry, i); };
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
    corrupt(path(), std::string("the array of ") + name + " is outside the file or has another size than its rows need");
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
  const Fault fault = run_guarded(work);
  if (fault.happened) file_->fail(fault.at);
  if (found != crc) corrupt(path(), std::string("the crc of the array of ") + name + " does not match");
  return array;
}

std::string Chunk::where(const ChunkField& field, std::uint64_t page, std::optional<std::uint64_t> record) const {
  const std::uint64_t first = page * field.rows_per_page;
  const std::uint64_t last = std::min<std::uint64_t>(rows_, first + field.rows_per_page) - 1;
  const std::string of_record = record ? ", record " + std::to_string(*record) : "";
  return in_words(field.number) + of_record + ", rows " + std::to_string(first) + " to " + std::to_string(last);
}

ChunkField::Extent Chunk::page_extent(const ChunkField& field, std::uint64_t page) const {
  const std::uint64_t first = page * field.rows_per_page;
  const std::uint64_t last = std::min<std::uint64_t>(rows_, first + field.rows_per_page) - 1;
  ChunkField::Extent head{};
  ChunkField::Extent end{};
  const bool placed = field.extent(first, head) && field.extent(last, end) && end.offset + end.bytes >= head.offset;
  if (!placed) corrupt(path(), where(field, page) + ": a record is outside the field's region");
  return {head.offset, end.offset + end.bytes - head.offset};
}

void Chunk::verify_page(const ChunkField& field, std::uint64_t page, std::optional<std::uint64_t> record) const {
  const ChunkField::Extent extent = page_extent(field, page);
  if (file_->data() != nullptr) {
    return check_page(field, page, {file_->data() + field.data_offset + extent.offset, extent.bytes}, record);
  }
  std::vector<std::byte> copy(extent.bytes);
  file_->read(field.data_offset + extent.offset, copy);
  check_page(field, page, copy, record);
}

void Chunk::check_page(const ChunkField& field, std::uint64_t page, std::span<const std::byte> bytes,
                       std::optional<std::uint64_t> record) const {
  const std::uint32_t found = crc32c(bytes);
  if (found != load_le<std::uint32_t>(field.pages + 4 * page)) {
    corrupt(path(), where(field, page, record) + ": the crc does not match");
  }
  field.set_verified(page);
}

std::uint64_t chunk_index_start(std::span<const std::byte> end, std::uint64_t file_bytes, const std::string& path) {
  check_size(file_bytes, path);
  if (end.size() > file_bytes) throw std::invalid_argument("expected the last bytes of the file, got more than it has");
  if (end.size() < kChunkTailBytes) return file_bytes - kChunkTailBytes;
  const Tail tail = parse_tail(end.last(kChunkTailBytes), file_bytes, path);
  const std::uint64_t limit = tail.entries_offset;
  if (end.size() < file_bytes - limit) return limit;
  const std::span<const std::byte> footer = end.last(file_bytes - limit);
  check_footer(footer, tail.crc, path);
  std::uint64_t start = limit;
  for (std::size_t i = 0; i < kNumArrays * tail.num_fields; ++i) {
    const auto reference = array_reference(footer.subspan(i / kNumArrays * kChunkEntryBytes), i % kNumArrays);
    const auto offset = load_le<std::uint64_t>(&reference[0]);
    const auto bytes = load_le<std::uint64_t>(&reference[8]);
    need(offset <= limit && bytes <= limit - offset, path, "an index array is outside the file");
    if (bytes > 0) start = std::min(start, offset);
  }
  return start;
}

}  // namespace penstock
