#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "bind/array.h"
#include "bind/buffer.h"
#include "bind/path.h"
#include "bind/rows.h"
#include "bind/spans.h"
#include "bind/varying.h"
#include "core/arrow_runs.h"
#include "core/example.h"
#include "core/pieces.h"
#include "core/span_scan.h"
#include "core/utf8.h"

namespace penstock::bind {

using namespace nb::literals;

namespace {

// An array, the crcs of its pages (none: it is believed) and flags of those that were compared.
template <class T>
using Pages = std::tuple<Array<const T>, Array<const std::uint32_t>, Array<bool>>;
// Name and bytes of a file, words of a record, table, memory, name of the sidecar.
using Part = std::tuple<PathName, std::uint64_t, std::uint32_t, Pages<std::int64_t>, Pages<std::uint8_t>, PathName>;
using Words = Array<const std::int32_t>;

template <class T>
CheckedPages pages_of(const Pages<T>& pages, std::size_t page_bytes) {
  const auto& [array, crcs, checked] = pages;
  if (crcs.size() > 0) need_same_length(crcs.size(), checked.size());
  return {std::as_bytes(span(array)), span(crcs), reinterpret_cast<std::uint8_t*>(checked.data()), page_bytes};
}

std::unique_ptr<BoundTable> make_table(const nb::typed<nb::list, Part>& parts, std::size_t page_bytes) {
  std::vector<SpanPart> made;
  std::vector<nb::object> kept;
  for (const nb::handle one : parts) {
    const auto [name, file_bytes, words, table, memory, sidecar] = nb::cast<Part>(one, false);
    if (words == 0) throw std::invalid_argument("expected records of at least one word");
    made.push_back({name.bytes, file_bytes, std::get<0>(table).size() / words, words, pages_of(table, page_bytes),
                    pages_of(memory, page_bytes), sidecar.bytes});
    kept.push_back(nb::borrow(one));
  }
  return std::unique_ptr<BoundTable>(new BoundTable{std::move(kept), SpanTable(std::move(made))});
}

std::vector<std::int32_t> words_of(const Words& words) { return {words.data(), words.data() + words.size()}; }

std::unique_ptr<BoundSpans> column_of(nb::handle_t<BoundTable> self, nb::handle_t<BoundRows> rows, const Words& words,
                                      const Words& crc_words, bool in_memory, std::uint64_t batch_bytes, std::uint64_t item_bytes,
                                      bool is_text) {
  const RowReader& line = nb::cast<const BoundRows&>(rows).reader;
  const SpanTable& table = nb::cast<const BoundTable&>(self).table;
  if (item_bytes == 0 || line.stride() != 1) throw std::invalid_argument("expected elements, and rows of one byte");
  std::uint64_t bytes = 0;
  for (const SpanPart& part : table.parts()) bytes += in_memory ? part.memory.bytes.size() : part.file_bytes;
  if (bytes != line.length()) throw std::invalid_argument("expected the bytes of all files, one after the other");
  auto column = std::make_shared<const SpanColumn>(table, words_of(words), words_of(crc_words), in_memory);
  auto reader = std::make_shared<const RunReader>(line, *column, RunChecks{batch_bytes, item_bytes, is_text});
  return std::unique_ptr<BoundSpans>(new BoundSpans{nb::borrow(self), nb::borrow(rows), std::move(column), std::move(reader)});
}

using Chunks = nb::ndarray<const std::int64_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;
using Bits = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::unique_ptr<BoundSpans> arrow_field(nb::handle_t<BoundRows> rows, const Chunks& chunks, const Bits& bits,
                                        std::uint32_t offset_bytes, std::uint64_t item_bytes, bool is_text,
                                        std::uint64_t batch_bytes) {
  const RowReader& line = nb::cast<const BoundRows&>(rows).reader;
  need_same_length(chunks.shape(0), bits.shape(0));
  std::vector<ArrowChunk> made;
  for (std::size_t i = 0; i < chunks.shape(0); ++i) {
    const std::int64_t* const row = chunks.data() + 4 * i;
    if (std::any_of(row, row + 4, [](std::int64_t one) { return one < 0; })) throw std::invalid_argument("expected places");
    made.push_back({static_cast<std::uint64_t>(row[0]), static_cast<std::uint64_t>(row[1]), static_cast<std::uint64_t>(row[2]),
                    static_cast<std::uint64_t>(row[3])});
  }
  auto table =
      std::make_shared<const ArrowRuns>(line, std::move(made), std::vector<std::int64_t>(bits.data(), bits.data() + bits.size()),
                                        ArrowLayout{offset_bytes, item_bytes});
  auto reader = std::make_shared<const RunReader>(line, *table, RunChecks{batch_bytes, 1, is_text});
  return std::unique_ptr<BoundSpans>(new BoundSpans{nb::none(), nb::borrow(rows), std::move(table), std::move(reader)});
}

using Extents = std::tuple<OwnArray<std::int64_t>, OwnArray<std::int64_t>, OwnArray<std::int64_t>>;

Extents extents(const BoundTable& self, Ints starts, Ints stops, const Words& words) {
  need_same_length(starts.size(), stops.size());
  const std::size_t parts = self.table.parts().size();
  if (parts == 0 ? words.size() != 0 : words.size() % parts != 0) throw std::invalid_argument("expected words of every part");
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::int32_t word = words.data()[i];
    const auto most = static_cast<std::int32_t>(self.table.parts()[i / (words.size() / parts)].words);
    if (word < -1 || (word >= 0 && word + 1 >= most)) throw std::invalid_argument("expected words of the table");
  }
  std::vector<SpanTable::Extent> found;
  {
    const nb::gil_scoped_release free;
    need_below(span(starts), self.table.length() + 1);
    need_below(span(stops), self.table.length() + 1);
    found = self.table.extents(span(starts), span(stops), span(words));
  }
  Buffer columns[3];
  for (Buffer& column : columns) column = take_buffer(found.size() * sizeof(std::int64_t));
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::int64_t numbers[3] = {found[i].part, found[i].low, found[i].high};
    for (std::size_t c = 0; c < 3; ++c) reinterpret_cast<std::int64_t*>(columns[c].get())[i] = numbers[c];
  }
  return {as_array<std::int64_t>(std::move(columns[0]), found.size()),
          as_array<std::int64_t>(std::move(columns[1]), found.size()),
          as_array<std::int64_t>(std::move(columns[2]), found.size())};
}

using Shapes = nb::ndarray<std::uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void sizes(const BoundSpans& self, Ints ids, IntsOut out, const std::optional<Shapes>& shapes) {
  need_same_length(ids.size(), out.size());
  if (shapes) need_same_length(ids.size(), shapes->shape(0));
  if (shapes && shapes->shape(1) > UINT8_MAX) throw std::invalid_argument("expected fewer dimensions");
  const auto ndim = static_cast<std::uint8_t>(shapes ? shapes->shape(1) : 0);
  const nb::gil_scoped_release free;
  need_below(span(ids), self.column->length());
  self.reader->sizes(span(ids), ndim, out.data(), shapes ? shapes->data() : nullptr);
}

void read(const BoundSpans& self, Ints ids, Ints starts, Ints sizes, Array<std::uint8_t> out, ThreadPool& pool) {
  need_same_length(ids.size(), starts.size());
  need_same_length(ids.size(), sizes.size());
  const nb::gil_scoped_release free;
  need_below(span(ids), self.column->length());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int64_t start = starts.data()[i];
    const std::int64_t size = sizes.data()[i];
    if (start < 0 || static_cast<std::uint64_t>(start) > out.size() ||
        (size > 0 && static_cast<std::uint64_t>(size) > out.size() - static_cast<std::uint64_t>(start))) {
      throw std::invalid_argument("expected starts and sizes within out");
    }
  }
  self.reader->read(span(ids), starts.data(), sizes.data(), reinterpret_cast<std::byte*>(out.data()), pool);
}

void read_fixed(const BoundSpans& self, Ints ids, std::uint64_t stride, Array<std::uint8_t> out, Array<bool> present,
                ThreadPool& pool) {
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(stride, ids.size(), &bytes)) throw std::invalid_argument("expected fewer records");
  need_same_length(bytes, out.size());
  need_same_length(ids.size(), present.size());
  const nb::gil_scoped_release free;
  need_below(span(ids), self.column->length());
  std::memset(present.data(), 1, present.size());
  self.reader->read_fixed(span(ids), stride, reinterpret_cast<std::byte*>(out.data()),
                          reinterpret_cast<std::uint8_t*>(present.data()), pool);
}

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> own(std::vector<T> values) {
  auto* const kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return {kept->data(), {kept->size()}, owner};
}

nb::tuple take(SpanScanner& self) {
  ScannedSpans found;
  {
    const nb::gil_scoped_release free;
    if (!self.is_done()) throw std::invalid_argument("expected a scan that is done");
    found = self.take();
  }
  const auto* const memory = reinterpret_cast<const std::uint8_t*>(found.memory.data());
  return nb::make_tuple(found.columns, own(std::move(found.table)),
                        own(std::vector<std::uint8_t>(memory, memory + found.memory.size())), found.in_file, found.has_crcs);
}

template <class Scanner>
std::unique_ptr<Scanner> make_scanner(const PathName& name, std::uint64_t bytes) {
  return std::make_unique<Scanner>(name.bytes, bytes);
}

void bind_scans(nb::module_& m) {
  nb::class_<SpanScanner>(m, "SpanScanner", "Where the records of a file are, found by reading it once. For one thread.")
      .def_prop_ro("is_done", &SpanScanner::is_done)
      .def_prop_ro("next", &SpanScanner::next, "The next byte that it wants.")
      .def_prop_ro("need", &SpanScanner::need, "How many bytes from there on it wants at least; the file may end before.")
      .def(
          "feed",
          [](SpanScanner& self, Array<const std::uint8_t> data) {
            const nb::gil_scoped_release free;
            self.feed(std::as_bytes(span(data)));
          },
          "data"_a.noconvert(), "Bytes of the file from next on: need of them or more, or all up to its end.")
      .def(
          "scan",
          [](SpanScanner& self, const PathName& path, std::uint64_t device, std::uint64_t inode, std::uint64_t written_ns) {
            const nb::gil_scoped_release free;
            self.scan(path.bytes, {device, inode, written_ns});
          },
          "path"_a, "device"_a, "inode"_a, "written_ns"_a, "Read the file, which must be that version; 0 0 0: any.")
      .def("take", &take, nb::sig("def take(self) -> tuple[list[str], NDArray[numpy.int64], NDArray[numpy.uint8], int, bool]"),
           "When it is done: the columns, the words of all records, bytes in memory, columns in the file, whether there are "
           "crcs.");
  nb::class_<TFRecordScanner, SpanScanner>(m, "TFRecordScanner", "TFRecord files: one column, with crcs.")
      .def(nb::new_(&make_scanner<TFRecordScanner>), "name"_a, "bytes"_a);
  nb::class_<TarScanner, SpanScanner>(m, "TarScanner", "tar archives: samples as WebDataset groups them, keys in memory.")
      .def(nb::new_(&make_scanner<TarScanner>), "name"_a, "bytes"_a);
}

// Messages one after the other: message i is bytes [offsets[i], offsets[i + 1]).
std::span<const std::byte> message_of(const Array<const std::uint8_t>& values, const Ints& offsets, std::size_t i) {
  const std::int64_t* const at = offsets.data();
  return std::as_bytes(span(values)).subspan(static_cast<std::size_t>(at[i]), static_cast<std::size_t>(at[i + 1] - at[i]));
}

void need_messages(const Array<const std::uint8_t>& values, const Ints& offsets, std::size_t count) {
  need_same_length(count + 1, offsets.size());
  const std::int64_t* const at = offsets.data();
  if (at[0] < 0 || !std::is_sorted(at, at + offsets.size()) || static_cast<std::uint64_t>(at[count]) > values.size()) {
    throw std::invalid_argument("expected rising offsets within the values");
  }
}

using Counts = nb::ndarray<std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void measure_examples(const ExampleParser& self, const BoundTable& table, Ints ids, Array<const std::uint8_t> values,
                      Ints offsets, Counts out, ThreadPool& pool) {
  if (out.shape(0) != ids.size() || out.shape(1) != self.columns())
    throw std::invalid_argument("expected a count of each column");
  const nb::gil_scoped_release free;
  need_messages(values, offsets, ids.size());
  need_below(span(ids), table.table.length());
  in_pieces(ids.size(), values.size() / std::max<std::size_t>(1, ids.size()), pool, [&](std::size_t low, std::size_t high) {
    for (std::size_t i = low; i < high; ++i) {
      try {
        self.measure(message_of(values, offsets, i), out.data() + i * self.columns());
      } catch (const CorruptError& error) {
        throw CorruptError(table.table.name(ids.data()[i]) + ": " + error.what());
      }
    }
  });
}

using Column = std::optional<std::pair<Ints, Array<std::uint8_t>>>;

void read_examples(const ExampleParser& self, Array<const std::uint8_t> values, Ints offsets, Counts counts,
                   const std::vector<std::int64_t>& items, const std::vector<Column>& outs, ThreadPool& pool) {
  const std::size_t count = counts.shape(0);
  const std::size_t columns = self.columns();
  if (counts.shape(1) != columns || outs.size() != columns || items.size() != columns) {
    throw std::invalid_argument("expected every column");
  }
  const nb::gil_scoped_release free;
  need_messages(values, offsets, count);
  for (std::size_t c = 0; c < columns; ++c) {
    if (!outs[c]) continue;
    need_same_length(count, outs[c]->first.size());
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t start = outs[c]->first.data()[i];
      const auto room = static_cast<std::int64_t>(outs[c]->second.size()) - start;
      if (start < 0 || room < 0 || std::max<std::int64_t>(0, counts.data()[i * columns + c]) > room / items[c]) {
        throw std::invalid_argument("expected room for the values");
      }
    }
  }
  in_pieces(count, values.size() / std::max<std::size_t>(1, count), pool, [&](std::size_t low, std::size_t high) {
    std::vector<std::byte*> to(columns);
    for (std::size_t i = low; i < high; ++i) {
      for (std::size_t c = 0; c < columns; ++c) {
        to[c] = outs[c] ? reinterpret_cast<std::byte*>(outs[c]->second.data()) + outs[c]->first.data()[i] : nullptr;
      }
      self.read(message_of(values, offsets, i), counts.data() + i * columns, to.data());
    }
  });
}

void bind_examples(nb::module_& m) {
  nb::class_<ExampleParser>(m, "ExampleParser", "tf.Example messages as columns. Immutable; safe to use from several threads.")
      .def(
          "__init__",
          [](ExampleParser* self, std::vector<std::string> names, const std::vector<std::uint8_t>& kinds) {
            std::vector<FeatureKind> made(kinds.size());
            std::transform(kinds.begin(), kinds.end(), made.begin(),
                           [](std::uint8_t one) { return static_cast<FeatureKind>(one); });
            new (self) ExampleParser(std::move(names), std::move(made));
          },
          "names"_a, "kinds"_a, "The features, and their kinds: 1 byte strings, 2 floats, 3 whole numbers.")
      .def("measure", &measure_examples, "table"_a, "ids"_a.noconvert(), "values"_a.noconvert(), "offsets"_a.noconvert(),
           "out"_a.noconvert(), "pool"_a,
           "Fill out with the values of every feature in messages, one after the other: bytes of a byte string, -1: missing.")
      .def("read", &read_examples, "values"_a.noconvert(), "offsets"_a.noconvert(), "counts"_a.noconvert(), "items"_a, "outs"_a,
           "pool"_a, "Fill the outs, (starts, bytes) of each feature or None, with values of that many bytes each.")
      .def_static(
          "features",
          [](Array<const std::uint8_t> message) {
            std::vector<std::tuple<nb::bytes, std::uint8_t, std::uint64_t>> found;
            for (const NamedFeature& one : features_of(std::as_bytes(span(message)))) {
              found.emplace_back(nb::bytes(one.name.data(), one.name.size()), static_cast<std::uint8_t>(one.feature.kind),
                                 count_values(one.feature));
            }
            return found;
          },
          "message"_a.noconvert(), "Name, kind and number of values of every feature of a message.");
}

// A map of an open file. It needs no descriptor, of which a process has few.
struct Map {
  void* start;
  std::size_t bytes;
};

nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>> map_file(int descriptor, std::size_t bytes) {
  void* const start = bytes == 0 ? nullptr : mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
  if (start == MAP_FAILED) {
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  const nb::capsule owner(new Map{start, bytes}, [](void* p) noexcept {
    const Map* const map = static_cast<Map*>(p);
    if (map->start != nullptr) munmap(map->start, map->bytes);
    delete map;
  });
  return {static_cast<const std::uint8_t*>(start), {bytes}, owner};
}

// Whether the system seems to have a range of an open file in memory: some byte of every 64 KiB. What was read ahead of something
// else may end anywhere.
bool is_in_memory(int descriptor, std::uint64_t start, std::uint64_t stop) {
#ifdef RWF_NOWAIT
  constexpr std::uint64_t kProbeBytes = 64 << 10;
  const auto has = [&](std::uint64_t at) {
    std::byte one;
    const iovec place = {&one, 1};
    return preadv2(descriptor, &place, 1, static_cast<off_t>(at), RWF_NOWAIT) >= 0;  // it does not wait
  };
  if (start < stop && !has(stop - 1)) return false;
  for (std::uint64_t at = start; at < stop; at += kProbeBytes) {
    if (!has(at)) return false;
  }
  return true;
#else
  return false;
#endif
}

void advise(const Array<const std::uint8_t>& map, std::size_t low, std::size_t high) {
  if (low > high || high > map.size()) throw std::invalid_argument("expected a range of the map");
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(map.data()) + low) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(map.data()) + high;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);  // advice only
}

}  // namespace

void bind_spans(nb::module_& m) {
  bind_scans(m);
  nb::class_<BoundTable>(m, "SpanTable",
                         "Where the fields of records are in files, one table a file. Safe to use from several threads.")
      .def(nb::new_(&make_table), "parts"_a, "page_bytes"_a,
           "Of every file: name, bytes, words of a record, (table, crcs of its pages, flags), (memory, crcs, flags), name of the "
           "sidecar. A record has the first byte and the size of each column, -1 for a missing one, then crcs.")
      .def_prop_ro("length", [](const BoundTable& self) { return self.table.length(); })
      .def(
          "name",
          [](const BoundTable& self, std::int64_t record) {
            need_below({&record, 1}, self.table.length());
            return with_escapes(self.table.name(record));
          },
          "record"_a, "A record in a message: its file, and its number there.")
      .def("extents", &extents, "starts"_a.noconvert(), "stops"_a.noconvert(), "words"_a.noconvert(),
           "In which bytes of which files records [start, stop) are: of the columns at words, as many for every file.")
      .def("column", &column_of, "rows"_a, "words"_a.noconvert(), "crc_words"_a.noconvert(), "in_memory"_a, "batch_bytes"_a,
           "item_bytes"_a, "is_text"_a,
           "A field: in every file the column at that word (-1: missing), with its crc (-1: none), in the files or in the "
           "memories, whose bytes are the rows.");
  nb::class_<BoundSpans>(m, "SpanReader", "A field of records anywhere in files. Safe to use from several threads.")
      .def("sizes", &sizes, "ids"_a.noconvert(), "out"_a.noconvert(), "shapes"_a.noconvert().none() = nb::none(),
           "Fill out with the bytes of records; -1: missing. Of arrays with several dimensions, fill shapes, too.")
      .def("read", &read, "ids"_a.noconvert(), "starts"_a.noconvert(), "sizes"_a.noconvert(), "out"_a.noconvert(), "pool"_a,
           "Fill out with records, each from its start on; the sizes are those of sizes().")
      .def("read_fixed", &read_fixed, "ids"_a.noconvert(), "stride"_a, "out"_a.noconvert(), "present"_a.noconvert(), "pool"_a,
           "Fill out with records of one size, zeros for those that are missing, and present.")
      .def_prop_ro("varying", [](nb::handle_t<BoundSpans> self) {
        const auto& spans = nb::cast<const BoundSpans&>(self);
        return BoundVarying{spans.reader, nb::borrow(self), spans.column->length()};
      });
  m.def("arrow_field", &arrow_field, "rows"_a, "chunks"_a.noconvert(), "bits"_a.noconvert(), "offset_bytes"_a, "item_bytes"_a,
        "is_text"_a, "batch_bytes"_a,
        "A column of Arrow arrays on a line of bytes. Of each array: records, and where on the line its offsets are (or its "
        "records, "
        "if offset_bytes is 0), where its values are, and how many; and the bits, from the first record's on, that say which are "
        "there (-1: all), of every level of structs.");
  bind_examples(m);
  m.def("map_file", &map_file, "descriptor"_a, "bytes"_a, "The first bytes of an open file, mapped; it may be closed then.");
  m.def("is_in_memory", &is_in_memory, "descriptor"_a, "start"_a, "stop"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Whether the system seems to have a range of an open file in memory.");
  m.def("advise", &advise, "map"_a.noconvert(), "start"_a, "stop"_a, "Tell the system that a range of a map will be read.");
}

}  // namespace penstock::bind
