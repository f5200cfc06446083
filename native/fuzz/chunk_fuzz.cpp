// Any bytes, taken as a chunk: opened, and every record of every field read. Checksums are made right first, because no parser is
// reached behind a wrong one. Only CorruptError, TruncatedError and SystemError may come out.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/store_reader.h"
#include "tests/chunk_image.h"

using namespace penstock;

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace {

constexpr std::size_t kMaxImage = 64 << 10;
constexpr std::uint64_t kMaxRecord = 256 << 10;
constexpr std::uint64_t kMaxBatch = 64;

void allow_typed_errors(const auto& work) {
  try {
    work();
  } catch (const CorruptError&) {
  } catch (const SystemError&) {}
}

// The first and the last rows, so that four billion rows without bytes do not take hours.
std::vector<std::int64_t> ids_of(std::uint64_t rows) {
  std::vector<std::int64_t> ids;
  for (std::uint64_t i = 0; i < std::min(rows, kMaxBatch / 2); ++i) ids.push_back(static_cast<std::int64_t>(i));
  for (std::uint64_t i = 0; i < std::min(rows, kMaxBatch / 2); ++i) ids.push_back(static_cast<std::int64_t>(rows - 1 - i));
  return ids;
}

void read_field(const StoreReader& reader, const ChunkField& field, std::span<const std::int64_t> ids, ThreadPool& pool) {
  if (field.stride <= kMaxRecord) {
    std::vector<std::byte> out(ids.size() * field.stride);
    out.reserve(1);  // memory of no bytes still has an address
    std::vector<std::uint8_t> present(ids.size());
    allow_typed_errors([&] { reader.read_fixed(field.number, field.stride, ids, out.data(), present.data(), pool); });
  }
  // One by one, so that a bad record does not hide the next.
  for (const std::int64_t& id : ids) {
    allow_typed_errors([&] {
      std::int64_t size = 0;
      std::vector<std::uint32_t> dims(field.ndim);
      reader.measure(field.number, field.ndim, {&id, 1}, &size, field.ndim > 0 ? dims.data() : nullptr, pool);
      const std::int64_t start = 0;
      std::vector<std::byte> out(static_cast<std::size_t>(std::max<std::int64_t>(size, 0)));
      out.reserve(1);
      reader.read_variable(field.number, field.number % 2 == 1, {&id, 1}, &start, &size, out.data(), pool);
      if (size <= 0) return;
      const RecordPart half{id, size, size / 2, size - size / 2, 0};
      std::vector<std::byte> part(static_cast<std::size_t>(half.count));
      reader.read_parts(field.number, field.number % 2 == 1, {&half, 1}, part.data());
      if (!std::equal(part.begin(), part.end(), out.begin() + half.skip)) std::abort();
    });
  }
}

void read_all(const ChunkFact& fact, FileAccess access, bool verify) {
  std::vector<Segment> segments;
  if (fact.rows > 0) segments.push_back({0, fact.rows, 0, 0});
  StoreLimits limits;
  limits.record_bytes = kMaxRecord;
  limits.verify = verify;
  const StoreReader reader(fact.path, fact.rows, {fact}, segments, DatasetId{}, access, limits);
  ThreadPool pool(1);
  const std::vector<std::int64_t> ids = ids_of(fact.rows);
  const std::shared_ptr<const Chunk> chunk = reader.chunk(0);
  for (const ChunkField& field : chunk->fields()) {
    read_field(reader, field, ids, pool);
    for (std::uint64_t page = 0; page < std::min<std::uint64_t>(field.num_pages, kMaxBatch); ++page) {
      allow_typed_errors([&] { chunk->verify_page(field, page); });
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const ScratchFile scratch("chunk-fuzz");
  if (size < kChunkHeaderBytes + kChunkTailBytes || size > kMaxImage) return -1;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  Image image(bytes, bytes + size);
  const ChunkFact fact = seal(image, scratch.path());
  scratch.fill(image);
  allow_typed_errors([&] { read_all(fact, FileAccess::map, true); });
  allow_typed_errors([&] { read_all(fact, FileAccess::map, false); });
  allow_typed_errors([&] { read_all(fact, FileAccess::pread, true); });
  return 0;
}

// Half the time one number of the tail, of an entry or of the body becomes one that is apt to overflow or to miss by one.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed) {
  if (size < kChunkHeaderBytes + kChunkTailBytes || seed % 2 == 0) return LLVMFuzzerMutate(data, size, max_size);
  std::uint64_t state = seed;
  const auto draw = [&](std::uint64_t below) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (state >> 33) % below;
  };
  auto* image = reinterpret_cast<std::byte*>(data);
  const std::uint64_t fields = std::max<std::uint32_t>(1, load_le<std::uint32_t>(image + size - kChunkTailBytes + 24));
  const std::uint64_t footer =
      std::min<std::uint64_t>(size - kChunkHeaderBytes, kChunkTailBytes + (fields % 64) * kChunkEntryBytes);
  const std::uint64_t place = draw(4) == 0 ? draw(size - 8) : size - footer + 4 * draw((footer - 8) / 4);
  const std::uint64_t edges[] = {0,          1,          size,       size - footer, 1U << 16,  1U << 31,
                                 1ULL << 32, 1ULL << 62, 1ULL << 63, ~0ULL,         draw(256), draw(size)};
  const std::uint64_t value = edges[draw(std::size(edges))] + draw(17) - 8;
  const std::size_t widths[] = {1, 2, 4, 8};
  std::memcpy(image + place, &value, widths[draw(4)]);
  return size;
}
