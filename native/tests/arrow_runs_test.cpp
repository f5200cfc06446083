#include "core/arrow_runs.h"

#include <cstring>
#include <numeric>

#include "check.h"
#include "core/error.h"

using namespace penstock;

namespace {

// Two arrays on a line, each with offsets, values, and bits of the records that are there.
template <class Offset>
struct Line {
  static constexpr std::size_t kRecords[2] = {150, 3};

  Line() {
    for (std::size_t c = 0; c < 2; ++c) {
      ArrowChunk& chunk = chunks[c];
      chunk = {kRecords[c], bytes.size(), 0, 0};
      Offset at = 0;
      for (std::size_t i = 0; i <= kRecords[c]; ++i) {
        append(at);
        if (i < kRecords[c]) at += static_cast<Offset>(i % 4);
      }
      chunk.values = bytes.size();
      chunk.limit = static_cast<std::uint64_t>(at);
      for (Offset k = 0; k < at; ++k) append(static_cast<std::uint16_t>(k));
      bits.push_back(c == 1 ? -1 : static_cast<std::int64_t>(8 * bytes.size() + 5));
      bits.push_back(c == 1 ? static_cast<std::int64_t>(8 * bytes.size()) : -1);
      for (std::size_t i = 0; i < 20; ++i) bytes.push_back(std::byte{0xDB});  // 11011011
    }
  }

  template <class T>
  void append(T value) {
    const std::size_t at = bytes.size();
    bytes.resize(at + sizeof value);
    std::memcpy(bytes.data() + at, &value, sizeof value);
  }

  RowReader reader() const { return {{{"", 0, 0, bytes.size(), bytes.data()}}, 1, FileAccess::map}; }

  bool is_there(std::size_t c, std::size_t i) const { return (0xDB >> ((c == 0 ? 5 + i : i) % 8) & 1) != 0; }

  std::vector<std::byte> bytes;
  std::vector<ArrowChunk> chunks{2};
  std::vector<std::int64_t> bits;
};

constexpr std::size_t kAll = 153;

template <class Offset>
void records_are_between_offsets() {
  const Line<Offset> line;
  const RowReader reader = line.reader();
  const ArrowRuns table(reader, line.chunks, line.bits, {sizeof(Offset), 2});
  check_equal(table.length(), kAll);
  std::vector<std::int64_t> ids(kAll);
  std::iota(ids.rbegin(), ids.rend(), 0);
  std::vector<Run> runs(kAll);
  table.find(ids, runs.data());
  std::size_t missing = 0;
  for (std::size_t k = 0; k < kAll; ++k) {
    const auto id = static_cast<std::size_t>(ids[k]);
    const std::size_t c = id < 150 ? 0 : 1;
    const std::size_t i = id - (c == 0 ? 0 : 150);
    missing += line.is_there(c, i) ? 0 : 1;
    check_equal(runs[k].rows, line.is_there(c, i) ? static_cast<std::int64_t>(2 * (i % 4)) : -1);
    if (runs[k].rows <= 0) continue;
    std::uint16_t first = 0;
    std::memcpy(&first, line.bytes.data() + runs[k].start, sizeof first);
    check_equal(first, static_cast<std::uint16_t>(i / 4 * 6 + (i % 4 == 2 ? 1 : i % 4 == 3 ? 3 : 0)));
  }
  check(missing > 20 && missing < 60, "some are missing");
}

void records_may_have_one_size() {
  const Line<std::int64_t> line;
  const RowReader reader = line.reader();
  const std::vector<ArrowChunk> chunks{{10, 16, 0, 0}, {5, 100, 0, 0}};
  const ArrowRuns table(reader, chunks, {}, {0, 3});
  const std::vector<std::int64_t> ids{0, 9, 10, 14};
  std::vector<Run> runs(4);
  table.find(ids, runs.data());
  const std::int64_t starts[4] = {16, 43, 100, 112};
  for (std::size_t i = 0; i < 4; ++i) {
    check_equal(runs[i].start, starts[i]);
    check_equal(runs[i].rows, 3);
  }
}

void offsets_of_hostile_files_are_refused() {
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{1} << 62, INT64_MIN, INT64_MAX, std::int64_t{500}}) {
    Line<std::int64_t> line;
    std::memcpy(line.bytes.data() + line.chunks[0].address + 10 * 8, &bad, sizeof bad);  // records 9 and 10 are there
    const RowReader reader = line.reader();
    const ArrowRuns table(reader, line.chunks, line.bits, {8, 2});
    Run run = {};
    for (const std::int64_t id : {9, 10}) {
      check(line.is_there(0, static_cast<std::size_t>(id)), "the record is there");
      check_throws<CorruptError>([&] { table.find({&id, 1}, &run); });
    }
    const std::int64_t good = 11;
    table.find({&good, 1}, &run);
    check_equal(run.rows, 6);
  }
}

void arrays_outside_of_the_line_are_refused() {
  const Line<std::int32_t> line;
  const RowReader reader = line.reader();
  const auto with = [&](auto change) {
    std::vector<ArrowChunk> chunks = line.chunks;
    std::vector<std::int64_t> bits = line.bits;
    ArrowLayout layout{4, 2};
    change(chunks, bits, layout);
    check_throws<std::invalid_argument>([&] { static_cast<void>(ArrowRuns(reader, chunks, bits, layout)); });
  };
  const std::uint64_t size = line.bytes.size();
  with([&](auto& chunks, auto&, auto&) { chunks[1].address = size - 4; });
  with([&](auto& chunks, auto&, auto&) { chunks[1].values = size + 1; });
  with([&](auto& chunks, auto&, auto&) { chunks[1].limit = size; });
  with([&](auto& chunks, auto&, auto&) { chunks[0].limit = UINT64_MAX / 2 + 1; });
  with([&](auto& chunks, auto&, auto&) { chunks[0].records = UINT64_MAX; });
  with([&](auto& chunks, auto&, auto&) { chunks[0].records = 0; });
  with([&](auto& chunks, auto&, auto&) { chunks.clear(); });
  with([&](auto&, auto& bits, auto&) { bits[0] = static_cast<std::int64_t>(8 * size); });
  with([&](auto&, auto& bits, auto&) { bits[0] = INT64_MAX; });
  with([&](auto&, auto& bits, auto&) { bits[0] = -2; });
  with([&](auto&, auto& bits, auto&) { bits.pop_back(); });
  with([&](auto&, auto&, auto& layout) { layout.offset_bytes = 2; });
  with([&](auto&, auto&, auto& layout) { layout.item_bytes = 0; });
}

}  // namespace

int main() {
  records_are_between_offsets<std::int32_t>();
  records_are_between_offsets<std::int64_t>();
  records_may_have_one_size();
  offsets_of_hostile_files_are_refused();
  arrays_outside_of_the_line_are_refused();
  return finish();
}
