#include "core/packed_records.h"

#include <cstring>
#include <memory>
#include <numeric>

#include "check.h"
#include "core/error.h"

using namespace penstock;

namespace {

template <class T>
void append(std::vector<std::byte>& to, T value) {
  const std::size_t at = to.size();
  to.resize(at + sizeof value);
  std::memcpy(to.data() + at, &value, sizeof value);
}

// A file of records with three columns: bytes of any number, a u16, and an array of u16 with its shape before it.
std::vector<std::byte> file_of(std::uint32_t records, std::uint32_t first) {
  std::vector<std::byte> body;
  std::vector<std::uint32_t> offsets{4 + 4 * (records + 1)};
  for (std::uint32_t i = 0; i < records; ++i) {
    const std::uint32_t number = first + i;
    append(body, number % 5);                         // the size of the first column
    append(body, std::uint32_t{3 + 2 * number % 8});  // of the last one
    body.resize(body.size() + number % 5, std::byte{0x61});
    append(body, static_cast<std::uint16_t>(number));
    append(body, std::uint8_t{2 << 2});
    append(body, std::uint8_t{1});
    append(body, static_cast<std::uint8_t>(2 * number % 8 / 2));
    for (std::uint32_t k = 0; k < 2 * number % 8 / 2; ++k) append(body, static_cast<std::uint16_t>(number + k));
    offsets.push_back(offsets.front() + static_cast<std::uint32_t>(body.size()));
  }
  std::vector<std::byte> file;
  append(file, records);
  for (const std::uint32_t offset : offsets) append(file, offset);
  file.insert(file.end(), body.begin(), body.end());
  return file;
}

constexpr std::uint32_t kCounts[2] = {70, 30};

struct Files {
  Files() : files{file_of(kCounts[0], 0), file_of(kCounts[1], kCounts[0])} { open(); }

  void open() {
    line = std::make_unique<RowReader>(
        std::vector<RowPart>{{"", 0, 0, files[0].size(), files[0].data()}, {"", 0, 0, files[1].size(), files[1].data()}}, 1,
        FileAccess::map);
    records = std::make_unique<PackedRecords>(*line,
                                              std::vector<PackedFile>{{"one", 0, files[0].size(), kCounts[0], 4},
                                                                      {"two", files[0].size(), files[1].size(), kCounts[1], 4}},
                                              std::vector<PackedSize>{{-1, true}, {2, false}, {-1, true}});
  }

  std::vector<std::byte> files[2];
  std::unique_ptr<RowReader> line;
  std::unique_ptr<PackedRecords> records;
};

std::vector<std::int64_t> all() {
  std::vector<std::int64_t> ids(100);
  std::iota(ids.rbegin(), ids.rend(), 0);
  return ids;
}

void columns_are_found() {
  const Files files;
  check_equal(files.records->length(), std::uint64_t{100}, "length");
  const PackedColumn bytes(*files.records, 0, {});
  const PackedColumn numbers(*files.records, 1, {});
  const PackedColumn arrays(*files.records, 2, {PackedForm::mds, 0, 2, 2});
  const RunReader text(*files.line, bytes, RunChecks{1 << 20, 1, true});
  const RunReader fixed(*files.line, numbers, RunChecks{1 << 20});
  const RunReader shaped(*files.line, arrays, RunChecks{1 << 20, 2});
  const std::vector<std::int64_t> ids = all();
  std::vector<std::int64_t> sizes(100), starts(100);
  text.sizes(ids, 0, sizes.data(), nullptr);
  for (std::size_t i = 0; i < 100; ++i) check_equal(sizes[i], ids[i] % 5, "bytes of a text");
  std::vector<std::uint16_t> read(100);
  std::vector<std::uint8_t> present(100, 1);
  ThreadPool pool(2);
  fixed.read_fixed(ids, 2, reinterpret_cast<std::byte*>(read.data()), present.data(), pool);
  for (std::size_t i = 0; i < 100; ++i) check_equal(std::int64_t{read[i]}, ids[i], "number");
  std::vector<std::uint32_t> dims(200);
  shaped.sizes(ids, 2, sizes.data(), dims.data());
  std::exclusive_scan(sizes.begin(), sizes.end(), starts.begin(), std::int64_t{0});
  std::vector<std::uint16_t> values(static_cast<std::size_t>(starts.back() + sizes.back()) / 2 + 1);
  shaped.read(ids, starts.data(), sizes.data(), reinterpret_cast<std::byte*>(values.data()));
  for (std::size_t i = 0; i < 100; ++i) {
    const std::int64_t count = 2 * ids[i] % 8 / 2;
    check_equal(sizes[i], 2 * count, "bytes of an array");
    check_equal(dims[2 * i], 1U, "first dimension");
    check_equal(std::int64_t{dims[2 * i + 1]}, count, "second dimension");
    for (std::int64_t k = 0; k < count; ++k) {
      check_equal(std::int64_t{values[static_cast<std::size_t>(starts[i] / 2 + k)]}, ids[i] + k, "element");
    }
  }
}

template <class Change>
void check_refused(const Change& change, std::string_view words) {
  Files files;
  change(files.files[1]);
  files.open();
  const PackedColumn arrays(*files.records, 2, {PackedForm::mds, 0, 2, 2});
  Run run;
  const std::vector<std::int64_t> second{71};
  try {
    arrays.find(second, &run);
  } catch (const CorruptError& error) {
    check(std::string_view(error.what()).find(words) != std::string_view::npos, error.what());
    check(std::string_view(error.what()).starts_with("two, record 1: "), error.what());
    return;
  }
  check(false, say("expected an error about ", words));
}

template <class T>
auto poke(std::size_t at, T value) {
  return [=](std::vector<std::byte>& file) { std::memcpy(file.data() + at, &value, sizeof value); };
}

void what_cannot_be_is_refused() {
  const Files files;
  std::uint32_t begin = 0;
  std::memcpy(&begin, files.files[1].data() + 8, 4);
  check_refused(poke(8, std::uint32_t{3}), "behind the table");
  check_refused(poke(12, std::uint32_t{1 << 30}), "behind the table");
  check_refused(poke(12, begin - 1), "behind the table");
  check_refused(poke(12, begin + 3), "the sizes of 2 columns");
  check_refused(poke(begin, UINT32_MAX), "for its columns");
  check_refused(poke(begin + 8 + 71 % 5 + 2, std::uint8_t{3 << 2}), "3 dimensions");
  check_refused(poke(begin + 8 + 71 % 5 + 4, std::uint8_t{99}), "as its shape has");
  const std::vector<PackedSize> sizes{{1, false}};
  check_throws<std::invalid_argument>([&] { PackedRecords(*files.line, {{"x", 0, 1 << 30, 1, 4}}, sizes); });
  check_throws<std::invalid_argument>([&] { PackedRecords(*files.line, {{"x", 0, 12, 3, 4}}, sizes); });
  check_throws<std::invalid_argument>([&] { PackedRecords(*files.line, {}, {}); });
  check_throws<std::invalid_argument>([&] { PackedRecords(*files.line, {}, {{-1, false}}); });
  check_throws<std::invalid_argument>([&] { PackedColumn(*files.records, 3, {}); });
}

void heads_of_words_have_either_byte_order() {
  for (const bool swapped : {false, true}) {
    const auto put = [=](std::vector<std::byte>& to, std::uint32_t value) {
      append(to, swapped ? __builtin_bswap32(value) : value);
    };
    std::vector<std::byte> file;
    append(file, std::uint32_t{1});
    append(file, std::uint32_t{12});
    append(file, std::uint32_t{12 + 4 + 16 + 8});
    append(file, std::uint32_t{24});
    for (const std::uint32_t value : {7U, 2U, 1U, 2U}) put(file, value);
    append(file, std::uint64_t{5});
    const RowReader line({{"", 0, 0, file.size(), file.data()}}, 1, FileAccess::map);
    const PackedRecords records(line, {{"x", 0, file.size(), 1, 4}}, {{-1, true}});
    const PackedColumn column(records, 0, {PackedForm::words, 7, 2, 4});
    Run run;
    std::uint32_t dims[2];
    const std::vector<std::int64_t> first{0};
    column.find_shaped(first, 2, &run, dims);
    check_equal(run.start, std::int64_t{32}, "where the values begin");
    check_equal(dims[0] + 10 * dims[1], 21U, "shape");
    const PackedColumn other(records, 0, {PackedForm::words, 8, 2, 4});
    check_throws<CorruptError>([&] { other.find(first, &run); });
  }
}

}  // namespace

int main() {
  columns_are_found();
  what_cannot_be_is_refused();
  heads_of_words_have_either_byte_order();
  return finish();
}
