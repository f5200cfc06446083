#include "core/span_table.h"

#include <cstring>
#include <numeric>

#include "check.h"
#include "core/crc32c.h"

using namespace penstock;

namespace {

using Numbers = std::vector<std::int64_t>;
using Texts = std::vector<std::string>;

std::vector<std::byte> bytes_of(const std::string& text) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::int64_t crc_of(const std::string& text) { return crc32c(std::as_bytes(std::span(text))); }

// Two files, "aabbbé" and "ccdddd", of records with two columns and the crc of the first; and keys in memory.
struct Files {
  Files() {
    one = bytes_of("aabbb\xc3\xa9");
    two = bytes_of("ccdddd");
    keys = bytes_of("k0k1");
    first = {0, 2, 2, 3, 0, 2, crc_of("aa"), 5, 2, 0, -1, 2, 2, crc_of("\xc3\xa9")};
    second = {2, 4, crc_of("dddd"), 1, 0, crc_of("")};
    rows = std::make_unique<RowReader>(
        std::vector<RowPart>{{"", 0, 0, one.size(), one.data()}, {"", 0, 0, two.size(), two.data()}}, 1, FileAccess::map);
    words = std::make_unique<RowReader>(std::vector<RowPart>{{"", 0, 0, keys.size(), keys.data()}}, 1, FileAccess::map);
  }
  std::vector<SpanPart> parts() const {
    return {{"one", one.size(), 2, 7, {std::as_bytes(std::span(first))}, {keys}, "one.index"},
            {"two", two.size(), 2, 3, {std::as_bytes(std::span(second))}, {}, "two.index"}};
  }

  std::vector<std::byte> one, two, keys;
  Numbers first, second;
  std::unique_ptr<RowReader> rows, words;
};

Texts texts(const RunReader& reader, const Numbers& ids) {
  Numbers sizes(ids.size()), starts(ids.size());
  reader.sizes(ids, 0, sizes.data(), nullptr);
  std::int64_t end = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    starts[i] = end;
    end += std::max<std::int64_t>(0, sizes[i]);
  }
  std::string out(static_cast<std::size_t>(end), '?');
  reader.read(ids, starts.data(), sizes.data(), reinterpret_cast<std::byte*>(out.data()));
  Texts found;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    found.push_back(sizes[i] < 0 ? "missing"
                                 : out.substr(static_cast<std::size_t>(starts[i]), static_cast<std::size_t>(sizes[i])));
  }
  return found;
}

void fields_are_read_from_anywhere() {
  const Files files;
  const SpanTable table(files.parts());
  check_equal(table.length(), std::uint64_t{4}, "records");
  const SpanColumn data(table, {0, 0}, {6, 2}, false);
  const SpanColumn more(table, {2, -1}, {-1, -1}, false);
  const SpanColumn keys(table, {4, -1}, {-1, -1}, true);
  const Numbers ids{3, 0, 1, 2, 0};
  check_equal(texts(RunReader(*files.rows, data, {100, 1, true}), ids), Texts{"", "aa", "\xc3\xa9", "dddd", "aa"});
  check_equal(texts(RunReader(*files.rows, more, {100}), ids), Texts{"missing", "bbb", "missing", "missing", "bbb"});
  check_equal(texts(RunReader(*files.words, keys, {100, 1, true}), ids), Texts{"missing", "k0", "k1", "missing", "k0"});
}

void parts_of_checked_records_are_read() {
  const Files files;
  const SpanTable table(files.parts());
  const SpanColumn data(table, {0, 0}, {6, 2}, false);
  const RunReader reader(*files.rows, data, {100, 1, true});
  std::string out(6, '?');
  const std::vector<RecordPart> parts{{2, 4, 1, 2, 0}, {2, 4, 3, 1, 2}, {0, 2, 0, 2, 3}, {1, 2, 1, 1, 5}};
  reader.read_parts(parts, reinterpret_cast<std::byte*>(out.data()));
  check_equal(out, std::string("dddaa\xa9"), "parts");
}

void fixed_records_have_their_size() {
  const Files files;
  const SpanTable table(files.parts());
  const SpanColumn more(table, {2, -1}, {-1, -1}, false);
  const RunReader reader(*files.rows, more, {100});
  ThreadPool pool(1);
  std::string out(9, '?');
  std::vector<std::uint8_t> present(3, 1);
  const std::vector<std::uint32_t> places{2, 0, 1};
  reader.read_fixed(Numbers{0, 3, 0}, 3, reinterpret_cast<std::byte*>(out.data()), present.data(), pool, Places(places.data()));
  check_equal(out, std::string("\0\0\0bbbbbb", 9), "records");
  check_equal(present, std::vector<std::uint8_t>{0, 1, 1}, "present");
  check_throws<CorruptError>(
      [&] { reader.read_fixed(Numbers{0}, 2, reinterpret_cast<std::byte*>(out.data()), present.data(), pool); });
}

void extents_are_those_of_all_columns() {
  const Files files;
  const SpanTable table(files.parts());
  const std::vector<std::int32_t> words{0, 2, 0, -1};
  const auto found = table.extents(Numbers{0, 1, 3, 0}, Numbers{1, 3, 4, 0}, words);
  Numbers flat;
  for (const SpanTable::Extent& one : found) flat.insert(flat.end(), {one.part, one.low, one.high});
  check_equal(flat, Numbers{0, 0, 5, 0, 5, 7, 1, 2, 6}, "extents");
}

void damage_is_found() {
  Files files;
  std::vector<std::uint8_t> checked(4);
  std::vector<std::uint32_t> crcs;
  constexpr std::size_t kPage = 32;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(files.first));
  for (std::size_t at = 0; at < bytes.size(); at += kPage)
    crcs.push_back(crc32c(bytes.subspan(at, std::min(kPage, bytes.size() - at))));
  std::vector<SpanPart> parts = files.parts();
  parts[0].table = {bytes, crcs, checked.data(), kPage};
  const SpanTable table(parts);
  const SpanColumn data(table, {0, 0}, {6, 2}, false);
  const RunReader reader(*files.rows, data, {100});
  check_equal(texts(reader, {0}), Texts{"aa"});
  check_equal(checked, std::vector<std::uint8_t>{1, 1, 0, 0}, "checked pages");
  files.first[13] = 7;
  check_throws<CorruptError>([&] { texts(reader, {1}); });
  check_equal(texts(reader, {0}), Texts{"aa"}, "what was checked");
  files.first[13] = crc_of("\xc3\xa9");
  check_equal(texts(reader, {1}), Texts{"\xc3\xa9"});
  files.one[0] = std::byte{'b'};
  check_throws<CorruptError>([&] { texts(reader, {0}); });
}

void places_out_of_the_file_are_refused() {
  for (const auto& [start, size] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {-1, 1}, {0, 8}, {7, 1}, {INT64_MAX, INT64_MAX}, {0, -2}, {8, 0}, {INT64_MIN, INT64_MIN}}) {
    Files files;
    files.first[0] = start;
    files.first[1] = size;
    const SpanTable table(files.parts());
    const SpanColumn data(table, {0, 0}, {-1, -1}, false);
    const RunReader reader(*files.rows, data, {100});
    check_throws<CorruptError>([&] { texts(reader, {0}); });
    if (size != 0) check_throws<CorruptError>([&] { table.extents(Numbers{0}, Numbers{1}, std::vector<std::int32_t>{0, 0}); });
  }
}

void what_is_no_text_is_refused() {
  const Files files;
  const SpanTable table(files.parts());
  const SpanColumn more(table, {2, -1}, {-1, -1}, false);
  check_throws<CorruptError>([&] { texts(RunReader(*files.rows, more, {100, 2}), {0}); });
  Files bad;
  bad.first[2] = 4;  // "bé" cut in the middle
  const SpanTable cut(bad.parts());
  const SpanColumn column(cut, {2, -1}, {-1, -1}, false);
  bad.first[3] = 2;
  check_throws<CorruptError>([&] { texts(RunReader(*bad.rows, column, {100, 1, true}), {0}); });
}

void tables_that_cannot_be_are_refused() {
  const Files files;
  const SpanTable table(files.parts());
  for (const std::int32_t word : {-2, 6, 7}) {
    check_throws<std::invalid_argument>([&] { SpanColumn(table, {word, 0}, {-1, -1}, false); });
  }
  check_throws<std::invalid_argument>([&] { SpanColumn(table, {0}, {-1}, false); });
  check_throws<std::invalid_argument>([&] { SpanColumn(table, {0, 0}, {6, -1}, false); });
  std::vector<SpanPart> parts = files.parts();
  parts[0].records = 3;
  check_throws<std::invalid_argument>([&] { SpanTable{parts}; });
}

}  // namespace

int main() {
  fields_are_read_from_anywhere();
  parts_of_checked_records_are_read();
  fixed_records_have_their_size();
  extents_are_those_of_all_columns();
  damage_is_found();
  places_out_of_the_file_are_refused();
  what_is_no_text_is_refused();
  tables_that_cannot_be_are_refused();
  return finish();
}
