#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bind/array.h"
#include "bind/path.h"
#include "bind/rows.h"
#include "bind/spans.h"
#include "core/codec.h"
#include "core/packed_records.h"

namespace penstock::bind {

using namespace nb::literals;

namespace {

using Facts = nb::ndarray<const std::uint64_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;
using Columns = nb::ndarray<const std::int64_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
using Runs = nb::ndarray<std::int64_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
using Offsets = std::vector<Array<const std::uint32_t>>;

// Records, and what they are read from.
struct BoundPacked {
  nb::object rows;
  Offsets offsets;
  PackedRecords records;
};

std::unique_ptr<BoundPacked> make_packed(nb::handle_t<BoundRows> rows, const std::vector<PathName>& names, const Facts& facts,
                                         Offsets offsets, const Columns& columns) {
  need_same_length(names.size(), facts.shape(0));
  if (!offsets.empty()) need_same_length(names.size(), offsets.size());
  std::vector<PackedFile> files;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::uint64_t* const row = facts.data() + 4 * i;
    if (!offsets.empty()) need_same_length(row[2] + 1, offsets[i].size());
    files.push_back({names[i].bytes, row[0], row[1], row[2], row[3], offsets.empty() ? nullptr : offsets[i].data()});
  }
  std::vector<PackedSize> sizes;
  for (std::size_t i = 0; i < columns.shape(0); ++i) sizes.push_back({columns.data()[2 * i], columns.data()[2 * i + 1] != 0});
  const RowReader& line = nb::cast<const BoundRows&>(rows).reader;
  return std::unique_ptr<BoundPacked>(
      new BoundPacked{nb::borrow(rows), std::move(offsets), PackedRecords(line, std::move(files), std::move(sizes))});
}

void find_records(const BoundPacked& self, Ints ids, const Runs& out) {
  need_same_length(ids.size(), out.shape(0));
  static_assert(sizeof(Run) == 2 * sizeof(std::int64_t));
  const nb::gil_scoped_release free;
  need_below(span(ids), self.records.length());
  self.records.find(span(ids), reinterpret_cast<Run*>(out.data()));
}

std::unique_ptr<BoundSpans> field_of(nb::handle_t<BoundPacked> self, std::size_t column, std::uint8_t form, std::uint32_t code,
                                     std::uint8_t ndim, std::uint32_t item_bytes, bool is_text, std::uint64_t batch_bytes) {
  const auto& packed = nb::cast<const BoundPacked&>(self);
  if (form > static_cast<std::uint8_t>(PackedForm::words) || item_bytes == 0) throw std::invalid_argument("expected a form");
  auto table = std::make_shared<const PackedColumn>(packed.records, column,
                                                    PackedArray{static_cast<PackedForm>(form), code, ndim, item_bytes});
  auto reader = std::make_shared<const RunReader>(packed.records.line(), *table, RunChecks{batch_bytes, item_bytes, is_text});
  return std::unique_ptr<BoundSpans>(new BoundSpans{nb::borrow(self), packed.rows, std::move(table), std::move(reader)});
}

}  // namespace

void bind_packed(nb::module_& m) {
  nb::class_<BoundPacked>(m, "PackedRecords",
                          "Records in files that begin with a table of them, whose columns are packed: sizes of some, then the "
                          "bytes of all. Safe to use from several threads.")
      .def(
          nb::new_(&make_packed), "rows"_a, "names"_a, "facts"_a.noconvert(), "offsets"_a, "columns"_a.noconvert(),
          "Of a line of bytes: names of files, and of each where it begins there, its bytes, its records and where its table "
          "begins; the tables, or none of them, to read them from the files; and of each column the bytes of a value, or -1, and "
          "whether records have its size.")
      .def_prop_ro("length", [](const BoundPacked& self) { return self.records.length(); })
      .def("find", &find_records, "ids"_a.noconvert(), "out"_a.noconvert(),
           "Fill out with where whole records begin on the line, and their bytes.")
      .def("field", &field_of, "column"_a, "form"_a, "code"_a, "ndim"_a, "item_bytes"_a, "is_text"_a, "batch_bytes"_a,
           "A column as a field. Form: 0 plain bytes, 1 and 2 arrays of MDS (2: with their types), 3 arrays of LitData.");
  m.def(
      "decompress_zstd",
      [](Array<const std::uint8_t> stored, Array<std::uint8_t> out) {
        const nb::gil_scoped_release free;
        return decompress_zstd(std::as_bytes(span(stored)), std::as_writable_bytes(span(out)));
      },
      "stored"_a.noconvert(), "out"_a.noconvert(), "Fill out with what zstd frames have; False if that is not as many bytes.");
  m.def(
      "zstd_content_bytes", [](Array<const std::uint8_t> head) { return zstd_content_bytes(std::as_bytes(span(head))); },
      "head"_a.noconvert(), "The bytes that a zstd frame has, decompressed; -1 if its header does not say.");
}

}  // namespace penstock::bind
