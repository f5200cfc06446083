#include "core/chunk.h"

#include <limits>

#include "check.h"
#include "chunk_image.h"

using namespace penstock;

namespace {

const std::vector<FileAccess> kAll{FileAccess::map, FileAccess::pread, FileAccess::direct};

Image bytes_of(const std::string& text) {
  Image made(text.size());
  if (!text.empty()) std::memcpy(made.data(), text.data(), text.size());
  return made;
}

// Three rows: plain records of four bytes, and records of 1, 0 and 5 bytes of which the last is missing.
std::vector<ImageField> two_fields() {
  ImageField plain{.number = 3, .stride = 4, .rows_per_page = 2, .data = bytes_of("aaaabbbbcccc")};
  ImageField other{.number = 0, .data = bytes_of("x12345")};
  other.arrays[1] = numbers<std::uint64_t>({1, 1, 6});
  other.arrays[4] = Image(1, std::byte{0b011});
  return {plain, other};
}

struct Opened {
  explicit Opened(Image image, FileAccess access = FileAccess::map) {
    const ChunkFact fact = seal(image, scratch.path());
    scratch.fill(image);
    chunk = Chunk::open(fact, DatasetId{}, access);
  }
  ScratchFile scratch{"chunk-test"};
  std::shared_ptr<const Chunk> chunk;
};

void a_chunk_is_parsed() {
  for (const FileAccess access : kAll) {
    const Opened opened(make_image(3, two_fields()), access);
    const Chunk& chunk = *opened.chunk;
    check_equal(chunk.rows(), 3U);
    check_equal(chunk.fields().size(), 2U);
    check(chunk.field(1) == nullptr && chunk.field(4) == nullptr && chunk.field(~0U) == nullptr, "fields it does not have");
    const ChunkField& plain = *chunk.field(3);
    check(plain.is_plain() && plain.stride == 4 && plain.num_pages == 2, "the plain field");
    ChunkField::Extent extent{};
    check(plain.extent(2, extent) && extent.offset == 8 && extent.bytes == 4, "a plain record");
    const ChunkField& other = *chunk.field(0);
    check(!other.is_plain() && other.present(0) && other.present(1) && !other.present(2), "what is missing");
    check(other.extent(2, extent) && extent.offset == 1 && extent.bytes == 5, "a record with an end");
    for (const ChunkField& field : chunk.fields()) {
      for (std::uint64_t page = 0; page < field.num_pages; ++page) {
        check(!field.is_verified(page), "not yet verified");
        chunk.verify_page(field, page);
        check(field.is_verified(page), "verified");
      }
    }
  }
}

void a_damaged_page_is_named() {
  Image image = make_image(3, two_fields());
  const ScratchFile scratch("chunk-page");
  const ChunkFact fact = seal(image, scratch.path());
  image[64 + 9] ^= std::byte{1};  // in row 2 of the plain field
  scratch.fill(image);
  for (const FileAccess access : kAll) {
    const auto chunk = Chunk::open(fact, DatasetId{}, access);
    chunk->verify_page(*chunk->field(3), 0);
    try {
      chunk->verify_page(*chunk->field(3), 1);
      check(false, "expected an error");
    } catch (const CorruptError& error) {
      const std::string text = error.what();
      check(text.find(scratch.path()) != text.npos && text.find("field 3") != text.npos && text.find("rows 2 to 2") != text.npos,
            text);
    }
  }
}

// Every byte of the file changed without new checksums: refused when opened or when a page is checked, or not part of anything.
void every_changed_byte_is_noticed_or_padding() {
  Image image = make_image(3, two_fields());
  const ScratchFile scratch("chunk-flip");
  const ChunkFact fact = seal(image, scratch.path());
  std::size_t silent = 0;
  for (std::byte& byte : image) {
    byte ^= std::byte{0x40};
    scratch.fill(image);
    try {
      const auto chunk = Chunk::open(fact, DatasetId{}, FileAccess::map);
      for (const ChunkField& field : chunk->fields()) {
        for (std::uint64_t page = 0; page < field.num_pages; ++page) chunk->verify_page(field, page);
      }
      ++silent;
    } catch (const CorruptError&) {}
    byte ^= std::byte{0x40};
  }
  check(silent < 128, say(silent, " bytes may change unnoticed, more than there is padding"));
}

void facts_that_differ_from_the_file_are_refused() {
  Image image = make_image(3, two_fields());
  const ScratchFile scratch("chunk-facts");
  const ChunkFact fact = seal(image, scratch.path());
  scratch.fill(image);
  DatasetId other{};
  other[5] = std::byte{1};
  const auto refused = [&](ChunkFact wrong, const DatasetId& id = {}) {
    check_throws<CorruptError>([&] { (void)Chunk::open(wrong, id, FileAccess::map); });
  };
  refused({fact.path, fact.bytes + 1, fact.rows, fact.crc});
  refused({fact.path, fact.bytes, fact.rows + 1, fact.crc});
  refused({fact.path, fact.bytes, 0, fact.crc});
  refused({fact.path, fact.bytes, fact.rows, fact.crc + 1});
  refused(fact, other);
  check_throws<SystemError>(
      [&] { (void)Chunk::open({fact.path + "-none", fact.bytes, fact.rows, fact.crc}, {}, FileAccess::map); });
  for (const std::size_t size : {0, 1, 64, 127}) {
    scratch.cut(size);
    refused({fact.path, size, fact.rows, fact.crc});
  }
}

// Numbers of an entry and of the tail at which arithmetic goes wrong: refused, or harmless when pages are checked.
void hostile_numbers_never_reach_outside() {
  constexpr std::uint64_t kEdges[] = {0,          1,           7,           64,
                                      1U << 16,   0x7FFF'FFFF, 0x8000'0000, 0xFFFF'FFFF,
                                      1ULL << 32, 1ULL << 61,  1ULL << 62,  std::numeric_limits<std::uint64_t>::max() / 3,
                                      1ULL << 63, ~63ULL,      ~7ULL,       ~0ULL};
  const Image good = make_image(3, two_fields());
  const ScratchFile scratch("chunk-hostile");
  const std::size_t entries = good.size() - 64 - 2 * kChunkEntryBytes;
  std::size_t refused = 0;
  std::size_t tried = 0;
  for (std::size_t place = entries; place < good.size() - 12; place += 4) {
    for (const std::uint64_t value : kEdges) {
      for (const std::size_t width : {1, 2, 4, 8}) {
        for (const FileAccess access : kAll) {
          Image image = good;
          std::memcpy(&image[place], &value, width);
          const ChunkFact fact = seal(image, scratch.path());
          scratch.fill(image);
          ++tried;
          try {
            const auto chunk = Chunk::open(fact, DatasetId{}, access);
            for (const ChunkField& field : chunk->fields()) {
              for (std::uint64_t page = 0; page < std::min<std::uint64_t>(field.num_pages, 8); ++page)
                chunk->verify_page(field, page);
            }
          } catch (const CorruptError&) {
            ++refused;
          }
        }
      }
    }
  }
  check(refused > tried / 4, say(refused, " of ", tried, " refused"));
}

void plain_records_must_fill_their_region() {
  for (const std::uint64_t stride : {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{5}, (~std::uint64_t{0} / 3) + 5}) {
    auto fields = two_fields();
    fields[0].stride = stride;
    check_throws<CorruptError>([&] { (void)Opened(make_image(3, fields)); });
  }
  auto fields = two_fields();
  fields[0].codec = Codec::lz4;  // a compressed field without ends
  check_throws<CorruptError>([&] { (void)Opened(make_image(3, fields)); });
}

void a_field_stands_once_and_has_a_small_number() {
  for (const std::uint32_t number : {3U, kMaxFields, ~0U}) {
    auto fields = two_fields();
    fields[1].number = number;
    check_throws<CorruptError>([&] { (void)Opened(make_image(3, fields)); });
  }
}

void four_billion_rows_of_no_bytes_take_no_memory() {
  ImageField nothing{.stride = 0, .rows_per_page = kMaxRows};
  const Opened opened(make_image(kMaxRows, {nothing}));
  check_equal(opened.chunk->rows(), kMaxRows);
  opened.chunk->verify_page(*opened.chunk->field(0), 0);
}

void broken_dictionaries_are_refused() {
  auto fields = two_fields();
  fields[1].arrays[5] = bytes_of(std::string("\x37\xa4\x30\xec\x01\0\0\0garbage", 15));
  check_throws<CorruptError>([&] { (void)Opened(make_image(3, fields)); });
}

// The answer for the last bytes of an image, in memory of exactly that size: a read outside is noticed by the address sanitizer.
std::uint64_t index_start(const Image& image, std::uint64_t bytes) {
  return chunk_index_start(Image(image.end() - static_cast<std::ptrdiff_t>(bytes), image.end()), image.size(), "c");
}

void the_index_is_found_from_the_end() {
  auto fields = two_fields();
  fields.push_back({.number = 7, .stride = 5, .data = Image(15)});
  Image image = make_image(3, fields);
  seal(image, "c");
  const std::uint64_t entries = image.size() - kChunkTailBytes - 3 * kChunkEntryBytes;
  const std::uint64_t first = load_le<std::uint64_t>(&image[entries + 40]);  // the page checksums of the first field
  for (std::uint64_t bytes = 0; bytes <= image.size(); ++bytes) {
    const std::uint64_t expected = bytes < kChunkTailBytes          ? image.size() - kChunkTailBytes
                                   : image.size() - bytes > entries ? entries
                                                                    : first;
    check_equal(index_start(image, bytes), expected, say("with ", bytes, " bytes"));
  }
  Image empty = make_image(0, {});
  seal(empty, "c");
  check_equal(index_start(empty, 64), 64U, "without fields");
  check_throws<std::invalid_argument>([&] { (void)chunk_index_start(Image(image.size() + 1), image.size(), "c"); });
}

// What Chunk::open reads is behind the answer: with everything else but the header gone, the chunk opens.
void the_index_is_enough_to_open() {
  Image image = make_image(3, {{.number = 1, .stride = 8, .data = Image(24, std::byte{9})}});
  ChunkFact fact = seal(image, "c");
  const auto landing = std::make_shared<Landing>(image.size());
  fact.landing = landing;
  check_throws<std::logic_error>([&] { (void)Chunk::open(fact, DatasetId{}, FileAccess::map); });
  const std::uint64_t start = index_start(image, image.size());
  landing->write(0, std::span(image).first(kChunkHeaderBytes));
  landing->write(start, std::span(image).subspan(start));
  const auto chunk = Chunk::open(fact, DatasetId{}, FileAccess::map);
  check(chunk->is_whole() && chunk->file()->data() == landing->data(), "read in place");
  check_throws<CorruptError>([&] { chunk->verify_page(*chunk->field(1), 0); });
  landing->write(0, image);
  chunk->verify_page(*chunk->field(1), 0);
  fact.landing = std::make_shared<Landing>(image.size() + 8);
  check_throws<CorruptError>([&] { (void)Chunk::open(fact, DatasetId{}, FileAccess::map); });
}

// Every number of entries and tail at its edges, with and without right checksums: refused, or an offset within the file; and
// whatever opens has its index there.
void hostile_ends_never_lead_outside() {
  const Image good = [] {
    Image image = make_image(3, two_fields());
    seal(image, "c");
    return image;
  }();
  const std::size_t entries = good.size() - 64 - 2 * kChunkEntryBytes;
  std::size_t refused = 0;
  for (std::size_t place = entries; place + 8 <= good.size(); place += 4) {
    for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{63}, std::uint64_t{1} << 32,
                                      ~std::uint64_t{7}, std::uint64_t{1} << 63, ~std::uint64_t{0}, std::uint64_t{good.size()}}) {
      for (const std::size_t width : {1, 4, 8}) {
        for (const bool sealed : {false, true}) {
          Image image = good;
          std::memcpy(&image[place], &value, width);
          ChunkFact fact{"c", image.size(), 3, 0};
          if (sealed) fact = seal(image, "c");
          try {
            const std::uint64_t start = index_start(image, image.size());
            check(start <= image.size() - kChunkTailBytes, say("place ", place, ": ", start));
            check_equal(index_start(image, image.size() - start), start, "with what was asked for");
            const auto landing = std::make_shared<Landing>(image.size());
            landing->write(0, std::span(image).first(kChunkHeaderBytes));
            landing->write(start, std::span(image).subspan(start));
            fact.landing = landing;
            (void)Chunk::open(fact, DatasetId{}, FileAccess::map);
          } catch (const CorruptError&) {
            ++refused;
          }
        }
      }
    }
  }
  check(refused > 1000, say(refused, " refused"));
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{127}, std::uint64_t{good.size() - 1}}) {
    check_throws<CorruptError>([&] { (void)chunk_index_start({}, bytes, "c"); });
  }
  for (const std::uint64_t bytes : {std::uint64_t{good.size() + 8}, ~std::uint64_t{7}}) {
    check_throws<CorruptError>([&] { (void)chunk_index_start(good, bytes, "c"); });
  }
}

}  // namespace

int main() {
  a_chunk_is_parsed();
  a_damaged_page_is_named();
  every_changed_byte_is_noticed_or_padding();
  facts_that_differ_from_the_file_are_refused();
  hostile_numbers_never_reach_outside();
  plain_records_must_fill_their_region();
  a_field_stands_once_and_has_a_small_number();
  four_billion_rows_of_no_bytes_take_no_memory();
  broken_dictionaries_are_refused();
  the_index_is_found_from_the_end();
  the_index_is_enough_to_open();
  hostile_ends_never_lead_outside();
  return finish();
}
