#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bind/array.h"
#include "bind/buffer.h"
#include "bind/landing.h"
#include "bind/path.h"
#include "bind/rows.h"
#include "bind/varying.h"
#include "core/documents.h"
#include "core/row_lookup.h"
#include "core/run_reader.h"

namespace penstock::bind {

using namespace nb::literals;

namespace {

using Words = nb::ndarray<const std::uint64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Rows = BoundRows::Array;

std::unique_ptr<BoundRows> of_files(const std::vector<PathName>& paths, const Words& facts, std::uint64_t stride,
                                    const std::string& access) {
  if (facts.shape(0) != paths.size() || facts.shape(1) != 6) throw std::invalid_argument("expected six numbers per file");
  std::vector<RowPart> parts;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::uint64_t* row = facts.data() + 6 * i;
    parts.push_back({paths[i].bytes, row[0], row[1], row[2], nullptr, nullptr, {row[3], row[4], row[5]}});
  }
  return std::unique_ptr<BoundRows>(new BoundRows{RowReader(std::move(parts), stride, file_access(access)), {}});
}

std::unique_ptr<BoundRows> of_memory(std::vector<Rows> arrays, std::uint64_t stride) {
  std::vector<RowPart> parts;
  for (const Rows& array : arrays) {
    if (stride == 0 || array.size() % stride != 0) throw std::invalid_argument("expected whole rows");
    parts.push_back({"", 0, 0, array.size() / stride, reinterpret_cast<const std::byte*>(array.data())});
  }
  return std::unique_ptr<BoundRows>(new BoundRows{RowReader(std::move(parts), stride, FileAccess::map), std::move(arrays)});
}

std::unique_ptr<BoundRows> of_landings(const std::vector<BoundLanding>& landings, const Words& facts, std::uint64_t stride) {
  if (facts.shape(0) != landings.size() || facts.shape(1) != 2) throw std::invalid_argument("expected two numbers per landing");
  std::vector<RowPart> parts;
  for (std::size_t i = 0; i < landings.size(); ++i) {
    const std::uint64_t* row = facts.data() + 2 * i;
    parts.push_back({"", 0, row[0], row[1], nullptr, landings[i].landing});
  }
  return std::unique_ptr<BoundRows>(new BoundRows{RowReader(std::move(parts), stride, FileAccess::map), {}});
}

void read_rows(const BoundRows& self, Ints starts, std::uint64_t run, Array<std::uint8_t> out, ThreadPool& pool) {
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(run, self.reader.stride(), &bytes) || __builtin_mul_overflow(bytes, starts.size(), &bytes)) {
    throw std::invalid_argument("expected a smaller run");
  }
  need_same_length(bytes, out.size());
  if (run == 0) return;
  const std::uint64_t length = self.reader.length();
  const nb::gil_scoped_release free;
  need_below(span(starts), run > length ? 0 : length - run + 1);
  self.reader.read(span(starts), run, reinterpret_cast<std::byte*>(out.data()), pool);
}

void read_spans(const BoundRows& self, Ints starts, Ints offsets, Array<std::uint8_t> out, ThreadPool& pool) {
  need_same_length(starts.size() + 1, offsets.size());
  const std::int64_t* const at = offsets.data();
  const auto length = static_cast<std::int64_t>(self.reader.length());
  const nb::gil_scoped_release free;
  std::uint64_t bytes = 0;
  if (at[0] != 0 || !std::is_sorted(at, at + offsets.size()) ||
      __builtin_mul_overflow(static_cast<std::uint64_t>(at[starts.size()]), self.reader.stride(), &bytes) ||
      bytes != out.size()) {
    throw std::invalid_argument("expected rising offsets from 0 to the number of rows in out");
  }
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::int64_t start = starts.data()[i];
    if (start < 0 || start > length || at[i + 1] - at[i] > length - start) {
      throw nb::index_error(("expected spans within [0, " + std::to_string(length) + "), got " +
                             std::to_string(at[i + 1] - at[i]) + " rows from " + std::to_string(start))
                                .c_str());
    }
  }
  self.reader.read_spans(span(starts), span(offsets), reinterpret_cast<std::byte*>(out.data()), pool);
}

// A reader of runs, and the array that says where they are.
struct BoundRuns {
  BoundRuns(const RowReader& rows, Ints places, std::uint64_t batch_bytes)
      : bounds(std::move(places)), table(span(bounds), rows.length()), reader(rows, table, RunChecks{batch_bytes}) {}
  Ints bounds;
  RisingBounds table;
  RunReader reader;
};

BoundVarying runs_of(nb::handle_t<BoundRows> self, Ints bounds, std::uint64_t batch_bytes) {
  const auto kept = std::make_shared<const BoundRuns>(nb::cast<const BoundRows&>(self).reader, bounds, batch_bytes);
  return {{kept, &kept->reader}, nb::borrow(self), bounds.size() - 1};
}

// Where records lie whose runs lie one after the other, each with rows of one size: run r has the ids up to ends[r], and id i of
// it is at bases[r] + i * stride.
void row_addresses(Ints ids, Ints ends, Ints bases, std::int64_t stride, IntsOut out) {
  need_same_length(ids.size(), out.size());
  need_same_length(ends.size(), bases.size());
  const std::span<const std::int64_t> stops = span(ends);
  need_below(span(ids), stops.empty() ? 0 : static_cast<std::uint64_t>(stops.back()));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int64_t id = ids.data()[i];
    const auto run = stops.size() == 1 ? 0 : std::upper_bound(stops.begin(), stops.end(), id) - stops.begin();
    out.data()[i] = bases.data()[run] + id * stride;
  }
}

void mark(Array<const std::uint8_t> tokens, std::size_t item, std::size_t length, Array<const std::uint8_t> separator,
          Ints breaks, Array<std::int32_t> segment, Array<std::int32_t> position) {
  if (item == 0 || segment.size() != tokens.size() / item || position.size() != segment.size()) {
    throw std::invalid_argument("expected a segment and a position for every token");
  }
  const nb::gil_scoped_release free;
  mark_documents(std::as_bytes(span(tokens)), item, length, std::as_bytes(span(separator)), span(breaks), segment.data(),
                 position.data());
}

using RunTable = nb::ndarray<const std::int64_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;

void make_lookup(RowLookup* self, const std::vector<RunTable>& streams) {
  std::vector<std::vector<RowRun>> runs(streams.size());
  for (std::size_t s = 0; s < streams.size(); ++s) {
    for (std::size_t i = 0; i < streams[s].shape(0); ++i) {
      const std::int64_t* const run = streams[s].data() + 4 * i;
      runs[s].push_back({run[0], run[1], run[2], static_cast<std::int32_t>(run[3])});
    }
  }
  new (self) RowLookup(runs);
}

void find_rows(const RowLookup& self, Ints ids, const std::optional<Array<const std::int32_t>>& streams,
               Array<std::int32_t> which, IntsOut rows) {
  need_same_length(ids.size(), which.size());
  need_same_length(ids.size(), rows.size());
  if (streams) need_same_length(ids.size(), streams->size());
  const nb::gil_scoped_release free;
  self.find(span(ids), streams ? span(*streams) : std::span<const std::int32_t>{}, which.data(), rows.data());
}

void bind_lookup(nb::module_& m) {
  nb::class_<RowLookup>(m, "RowLookup", "Records of streams as rows of leaves. Immutable; safe to use from several threads.")
      .def("__init__", &make_lookup, "streams"_a,
           "Of each stream its runs, (end, base, step, leaf) each: record i below end is row base + i * step of that leaf.")
      .def("find", &find_rows, "ids"_a.noconvert(), "streams"_a.noconvert().none(), "which"_a.noconvert(), "rows"_a.noconvert(),
           "Fill which and rows with the leaf and row of each record; ``streams`` has the stream of each (None: the first).");
  m.def(
      "group_by",
      [](Array<const std::int32_t> which, IntsOut order, IntsOut ends) {
        need_same_length(which.size(), order.size());
        const nb::gil_scoped_release free;
        group_by(span(which), span(order), span(ends));
      },
      "which"_a.noconvert(), "order"_a.noconvert(), "ends"_a.noconvert(),
      "Fill order with the places of each group's members, group by group, and ends with where each group ends there.");
}

}  // namespace

void bind_rows(nb::module_& m) {
  bind_lookup(m);
  nb::class_<BoundVarying>(m, "VaryingReader", "Records of one field that have different lengths, as a ring reads them.");
  nb::class_<BoundRows>(m, "RowReader",
                        "Rows of one size, in files, in memory or in landings. Safe to use from several threads and after fork.")
      .def(nb::new_(&of_files), "paths"_a, "facts"_a.noconvert(), "stride"_a, "access"_a)
      .def_static("of_memory", &of_memory, "arrays"_a, "stride"_a)
      .def_static("of_landings", &of_landings, "landings"_a, "facts"_a.noconvert(), "stride"_a,
                  "Rows of landings: where the first row of each begins, and how many there are. What is read must be in memory.")
      .def_prop_ro("length", [](const BoundRows& self) { return self.reader.length(); })
      .def("read", &read_rows, "starts"_a.noconvert(), "run"_a, "out"_a.noconvert(), "pool"_a,
           "Fill out with rows [start, start + run) of every start.")
      .def("read_spans", &read_spans, "starts"_a.noconvert(), "offsets"_a.noconvert(), "out"_a.noconvert(), "pool"_a,
           "Fill out with rows [start, start + offsets[i + 1] - offsets[i]) of every start, at offsets[i].")
      .def("runs", &runs_of, "bounds"_a.noconvert(), "batch_bytes"_a,
           "Records that are runs of rows, [bounds[i], bounds[i + 1]), for a ring.");
  m.def("row_addresses", &row_addresses, "ids"_a.noconvert(), "ends"_a.noconvert(), "bases"_a.noconvert(), "stride"_a,
        "out"_a.noconvert(), "Fill out with bases[r] + id * stride of every id, r being the first run that ends behind it.");
  m.def(
      "find_document_ends",
      [](Array<const std::uint8_t> tokens, std::size_t item, Array<const std::uint8_t> separator, std::size_t from, IntsOut out) {
        const nb::gil_scoped_release free;
        const std::size_t found =
            find_document_ends(std::as_bytes(span(tokens)), item, std::as_bytes(span(separator)), from, span(out));
        return std::pair(found, from);
      },
      "tokens"_a.noconvert(), "item"_a, "separator"_a.noconvert(), "start"_a, "out"_a.noconvert(),
      "Fill out with the places behind separators that begin at token `start` or later, in tokens of `item` bytes. Gives how "
      "many, "
      "and the first token at which one could begin that these tokens do not show.");
  m.def("mark_documents", &mark, "tokens"_a.noconvert(), "item"_a, "length"_a, "separator"_a.noconvert(), "breaks"_a.noconvert(),
        "segment"_a.noconvert(), "position"_a.noconvert(),
        "Of sequences of tokens of `item` bytes: the number of each token's document, and its place in it.");
  m.def(
      "empty",
      [](std::size_t rows, std::size_t stride) {
        std::size_t bytes = 0;
        if (__builtin_mul_overflow(rows, stride, &bytes)) throw std::bad_alloc();
        return as_array<std::uint8_t, 2>(take_buffer(bytes), {rows, stride});
      },
      "rows"_a, "stride"_a, "Rows of bytes with whatever they held before, in memory that is used again when the array is gone.");
  m.def("kept_buffer_bytes", &kept_buffer_bytes, "Bytes kept for the next arrays of empty().");
}

}  // namespace penstock::bind
