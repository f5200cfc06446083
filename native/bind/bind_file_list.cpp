#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "bind/array.h"
#include "bind/path.h"
#include "bind/spans.h"
#include "bind/varying.h"
#include "core/file_list.h"

namespace penstock::bind {

using namespace nb::literals;

namespace {

using Bytes = Array<const std::uint8_t>;
using Labels = Array<const std::int32_t>;
using Versions = Array<const std::uint64_t>;

// A list, the arrays that it is in, and its readers.
struct BoundList {
  using Kept = std::tuple<Ints, Bytes, Ints, Ints, Versions, Labels>;
  BoundList(Kept arrays, ListedFiles files, const Labels& labels, std::uint64_t batch_bytes)
      : kept(std::move(arrays)),
        list(std::move(files)),
        contents(list, batch_bytes),
        paths(list, batch_bytes),
        label_bytes({{"", 0, 0, labels.size() * sizeof(std::int32_t), reinterpret_cast<const std::byte*>(labels.data())}}, 1,
                    FileAccess::map),
        labels(list, span(labels)) {}
  Kept kept;
  FileList list;
  ListedContents contents;
  ListedPaths paths;
  RowReader label_bytes;
  ListedLabels labels;
};

std::unique_ptr<BoundList> make_list(const PathName& root, const std::vector<PathName>& folders, Ints run_ends, Bytes names,
                                     Ints name_ends, Ints sizes, Versions versions, const std::map<std::int64_t, PathName>& links,
                                     Labels labels, std::uint64_t batch_bytes) {
  ListedFiles files{
      root.bytes,      names_of(folders), span(run_ends), {reinterpret_cast<const char*>(names.data()), names.size()},
      span(name_ends), span(sizes),       span(versions)};
  for (const auto& [file, target] : links) files.links.emplace(file, target.bytes);
  return std::make_unique<BoundList>(BoundList::Kept{run_ends, names, name_ends, sizes, versions, labels}, std::move(files),
                                     labels, batch_bytes);
}

BoundVarying varying_of(nb::handle_t<BoundList> self, const VaryingReader& reader) {
  // The list is kept by the object: the pointer owns nothing.
  const std::shared_ptr<const VaryingReader> borrowed(std::shared_ptr<const void>{}, &reader);
  return {borrowed, nb::borrow(self), nb::cast<const BoundList&>(self).list.length()};
}

std::unique_ptr<BoundSpans> labels_of(nb::handle_t<BoundList> self) {
  const auto& own = nb::cast<const BoundList&>(self);
  const std::shared_ptr<const RunTable> table(std::shared_ptr<const void>{}, &own.labels);
  auto reader =
      std::make_shared<const RunReader>(own.label_bytes, own.labels, RunChecks{~std::uint64_t{0}, sizeof(std::int32_t)});
  return std::unique_ptr<BoundSpans>(new BoundSpans{nb::borrow(self), nb::none(), table, std::move(reader)});
}

void read_files(const BoundList& self, Ints ids, Ints offsets, Array<std::uint8_t> out, ThreadPool& pool) {
  need_same_length(ids.size() + 1, offsets.size());
  const std::int64_t* const at = offsets.data();
  const nb::gil_scoped_release free;
  need_below(span(ids), self.list.length());
  if (at[0] != 0 || !std::is_sorted(at, at + offsets.size()) || static_cast<std::uint64_t>(at[ids.size()]) != out.size()) {
    throw std::invalid_argument("expected rising offsets from 0 to the number of bytes in out");
  }
  self.contents.read(span(ids), span(offsets), reinterpret_cast<std::byte*>(out.data()), pool);
}

}  // namespace

void bind_file_list(nb::module_& m) {
  nb::class_<BoundList>(m, "FileList", "Files of a folder as records. Safe to use from several threads and after fork.")
      .def(nb::new_(&make_list), "root"_a, "folders"_a, "run_ends"_a.noconvert(), "names"_a.noconvert(),
           "name_ends"_a.noconvert(), "sizes"_a.noconvert(), "versions"_a.noconvert(), "links"_a, "labels"_a.noconvert(),
           "batch_bytes"_a,
           "The root and the folder of each run of files, both with a slash at their ends; the names of files, one behind the "
           "other; their bytes; three numbers each that say which version (none: any); where links lead to; a label for every "
           "run, "
           "below 0: none.")
      .def("read", &read_files, "ids"_a.noconvert(), "offsets"_a.noconvert(), "out"_a.noconvert(), "pool"_a,
           "Fill out with the bytes of files, each at its offset.")
      .def_prop_ro(
          "contents", [](nb::handle_t<BoundList> self) { return varying_of(self, nb::cast<const BoundList&>(self).contents); },
          "The bytes of files, for a ring.")
      .def_prop_ro(
          "paths", [](nb::handle_t<BoundList> self) { return varying_of(self, nb::cast<const BoundList&>(self).paths); },
          "The paths of files below the root, as text, for a ring.")
      .def_prop_ro("labels", &labels_of, "The labels of the runs that files are in.");
}

}  // namespace penstock::bind
