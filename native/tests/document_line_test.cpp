#include "core/document_line.h"

#include <cstring>
#include <numeric>

#include "check.h"
#include "core/batch_ring.h"
#include "store_files.h"

using namespace penstock;

namespace {

// Record `row` has row mod 6 tokens of two bytes: row * 10 + its place, and 1000 times the number of the reader. Row 66 fails.
class Tokens final : public VaryingReader {
 public:
  explicit Tokens(int number) : number_(number) {}

  static std::int64_t count(std::int64_t row) { return row % 6; }
  std::uint16_t token(std::int64_t row, std::int64_t place) const {
    return static_cast<std::uint16_t>(number_ * 1000 + row * 10 + place);
  }

  void sizes(std::span<const std::int64_t>, std::uint8_t, std::int64_t*, std::uint32_t*) const override {
    throw std::logic_error("a line knows the sizes");
  }
  void read(std::span<const std::int64_t>, const std::int64_t*, const std::int64_t*, std::byte*) const override {
    throw std::logic_error("a line reads parts");
  }
  void read_parts(std::span<const RecordPart> parts, std::byte* out) const override {
    for (const RecordPart& part : parts) {
      if (part.row == 66) throw std::runtime_error("row 66");
      check_equal(part.size, 2 * count(part.row), "size");
      check(part.count > 0 && part.skip >= 0 && part.skip + part.count <= part.size, "a part of the record");
      for (std::int64_t at = 0; at < part.count; at += 2) {
        const std::uint16_t value = token(part.row, (part.skip + at) / 2);
        std::memcpy(out + part.start + at, &value, 2);
      }
    }
  }
  std::uint64_t batch_bytes() const override { return ~std::uint64_t{0}; }

 private:
  int number_;
};

// 60 documents of two readers, in another order than their rows, with separators of `ends` tokens.
struct Line {
  explicit Line(std::int64_t ends) : first(0), second(1) {
    std::vector<std::byte> separator;
    for (std::int64_t i = 0; i < ends; ++i) {
      const auto value = static_cast<std::uint16_t>(60'000 + i);
      const auto* bytes = reinterpret_cast<const std::byte*>(&value);
      separator.insert(separator.end(), bytes, bytes + 2);
    }
    for (std::int64_t document = 0; document < 60; ++document) {
      which.push_back(static_cast<std::int32_t>(document * document % 3 % 2));
      rows.push_back(document * 7 % 60);
      for (std::int64_t place = 0; place < Tokens::count(rows.back()); ++place) {
        tokens.push_back((which.back() == 0 ? first : second).token(rows.back(), place));
      }
      for (std::int64_t i = 0; i < ends; ++i) tokens.push_back(static_cast<std::uint16_t>(60'000 + i));
      bounds.push_back(static_cast<std::int64_t>(tokens.size()));
    }
    line = std::make_unique<DocumentLine>(std::vector<const VaryingReader*>{&first, &second}, DocumentPlaces{bounds, which, rows},
                                          2, std::move(separator));
  }
  Tokens first, second;
  std::vector<std::int64_t> bounds{0};
  std::vector<std::int32_t> which;
  std::vector<std::int64_t> rows;
  std::vector<std::uint16_t> tokens;
  std::unique_ptr<DocumentLine> line;
};

void check_runs(const Line& made, const std::vector<std::int64_t>& starts, const std::vector<std::int64_t>& counts) {
  std::vector<std::int64_t> offsets{0};
  std::vector<std::uint16_t> expected;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    offsets.push_back(offsets.back() + counts[i]);
    if (starts[i] < 0) {
      expected.insert(expected.end(), static_cast<std::size_t>(counts[i]), 7);
      continue;
    }
    expected.insert(expected.end(), made.tokens.begin() + starts[i], made.tokens.begin() + starts[i] + counts[i]);
  }
  std::vector<std::uint16_t> found(expected.size(), 7);
  found.reserve(1);
  made.line->read(starts, offsets, reinterpret_cast<std::byte*>(found.data()));
  check(found == expected,
        say(starts.size(), " runs, the first of ", counts.empty() ? 0 : counts[0], " from ", starts.empty() ? 0 : starts[0]));
}

void every_run_of_the_line_is_read() {
  for (const std::int64_t ends : {0, 1, 3}) {
    const Line made(ends);
    const auto size = static_cast<std::int64_t>(made.tokens.size());
    for (std::int64_t start = 0; start <= size; ++start) {
      for (const std::int64_t count : {0, 1, 2, 7, 40}) {
        if (start + count <= size) check_runs(made, {start}, {count});
      }
      check_runs(made, {start}, {size - start});
    }
  }
}

void runs_may_overlap_and_come_in_any_order() {
  const Line made(2);
  const auto size = static_cast<std::int64_t>(made.tokens.size());
  std::vector<std::int64_t> starts;
  std::vector<std::int64_t> counts;
  for (std::int64_t i = 0; i < 500; ++i) {
    starts.push_back(i % 9 == 0 ? -1 : i * 7919 % size);  // some are left out
    counts.push_back(std::min<std::int64_t>(i % 23, size - starts.back()));
  }
  check_runs(made, starts, counts);
  check_runs(made, {}, {});
}

void errors_of_readers_are_raised() {
  const Tokens reader(0);
  const std::vector<std::int64_t> bounds{0, 5};
  const std::vector<std::int64_t> rows{66};
  const DocumentLine line({&reader}, {bounds, {}, rows}, 2, {});
  std::byte out[10];
  const std::int64_t start = 0;
  const std::int64_t offsets[2] = {0, 5};
  check_throws<std::runtime_error>([&] { line.read({&start, 1}, offsets, out); });
}

void lines_that_make_no_sense_are_refused() {
  const Tokens reader(0);
  const std::vector<std::int64_t> good{0, 5};
  const std::vector<std::vector<std::int64_t>> bad{{}, {1, 5}, {0, 5, 4}, {0, 5, 5}};
  const std::vector<std::byte> separator(2);
  for (const auto& bounds : bad) {
    check_throws<std::invalid_argument>([&] { DocumentLine({&reader}, {bounds, {}, {}}, 2, separator); });
  }
  const std::vector<std::int32_t> none;
  const std::vector<std::int32_t> beyond{1};
  const std::vector<std::int32_t> below{-1};
  const std::vector<std::int64_t> many{1, 2};
  check_throws<std::invalid_argument>([&] { DocumentLine({}, {good, {}, {}}, 2, {}); });
  check_throws<std::invalid_argument>([&] { DocumentLine({&reader}, {good, {}, {}}, 0, {}); });
  check_throws<std::invalid_argument>([&] { DocumentLine({&reader}, {good, {}, {}}, 4, separator); });
  check_throws<std::invalid_argument>([&] { DocumentLine({&reader}, {good, beyond, {}}, 2, {}); });
  check_throws<std::invalid_argument>([&] { DocumentLine({&reader}, {good, below, {}}, 2, {}); });
  check_throws<std::invalid_argument>([&] { DocumentLine({&reader}, {good, {}, many}, 2, {}); });
}

// The second field of the files of a store, as documents of bytes and as records of a ring.
void fields_of_stores_are_read_in_parts_and_by_rings() {
  const Files files;
  for (const FileAccess access : {FileAccess::map, FileAccess::pread, FileAccess::direct}) {
    const StoreReader store("store", kLength, files.facts(), kSegments, {}, access, {});
    const StoreField field(store, 1, false);
    std::vector<std::int64_t> all(kLength);
    std::iota(all.begin(), all.end(), 0);
    std::vector<std::int64_t> sizes(kLength);
    field.sizes(all, 0, sizes.data(), nullptr);
    std::vector<std::int64_t> bounds{0};
    std::vector<std::byte> bytes;
    for (std::int64_t id = 0; id < static_cast<std::int64_t>(kLength); ++id) {
      const StoreReader::Place place = place_of(id);
      const std::int64_t size = sizes[static_cast<std::size_t>(id)];
      check_equal(size, is_missing(place.row) ? -1 : static_cast<std::int64_t>(place.row % 5), say("size of ", id));
      for (std::int64_t i = 0; i < size; ++i) bytes.push_back(value_of(place.chunk, place.row, static_cast<std::uint64_t>(i)));
      bounds.push_back(static_cast<std::int64_t>(bytes.size()));
    }
    const DocumentLine line({&field}, {bounds, {}, {}}, 1, {});
    const auto length = static_cast<std::int64_t>(bytes.size());
    for (std::int64_t start = 0; start < length; start += 3) {
      const std::int64_t offsets[2] = {0, std::min<std::int64_t>(50, length - start)};
      std::vector<std::byte> found(static_cast<std::size_t>(offsets[1]));
      line.read({&start, 1}, offsets, found.data());
      check(std::equal(found.begin(), found.end(), bytes.begin() + start), say("bytes from ", start));
    }
    BatchRing ring({}, {{1, 0, {&field}}}, 2, {});
    ring.put({all, {}, {}});
    std::unique_ptr<RingBatch> batch;
    while (batch == nullptr) batch = ring.take(10);
    check(batch->error == nullptr, "no error");
    check_equal(batch->varying[0].bytes, static_cast<std::uint64_t>(length), "bytes");
    check(std::equal(bytes.begin(), bytes.end(), batch->varying[0].values.get()), "records");
    check(std::memcmp(batch->varying[0].offsets.get(), bounds.data(), 8 * bounds.size()) == 0, "offsets");
    const RecordPart wrong{1, 3, 0, 3, 0};  // it has another size
    std::byte out[3];
    check_throws<CorruptError>([&] { field.read_parts({&wrong, 1}, out); });
  }
}

}  // namespace

int main() {
  every_run_of_the_line_is_read();
  runs_may_overlap_and_come_in_any_order();
  errors_of_readers_are_raised();
  lines_that_make_no_sense_are_refused();
  fields_of_stores_are_read_in_parts_and_by_rings();
  return finish();
}
