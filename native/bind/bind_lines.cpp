#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <tuple>

#include "bind/array.h"
#include "core/json_lines.h"
#include "core/lines.h"

namespace penstock::bind {

using namespace nb::literals;

namespace {

using Bytes = Array<const std::uint8_t>;

std::size_t scan(LineScanner& self, Bytes piece, IntsOut spans) {
  const nb::gil_scoped_release free;
  return self.scan(std::as_bytes(span(piece)), span(spans));
}

void make_finder(JsonFinder* self, const std::vector<std::tuple<std::vector<std::string>, int, bool>>& paths, bool strict) {
  std::vector<JsonPath> made;
  for (const auto& [keys, kind, nullable] : paths) {
    if (kind < 0 || kind > static_cast<int>(JsonKind::nothing)) throw std::invalid_argument("expected a kind of value");
    made.push_back({keys, static_cast<JsonKind>(kind), nullable});
  }
  new (self) JsonFinder(made, strict);
}

std::tuple<int, std::size_t, std::int64_t, std::int64_t> find(const JsonFinder& self, Bytes text, Ints offsets, IntsOut starts,
                                                              IntsOut sizes) {
  const std::span<const std::int64_t> edges = span(offsets);
  const nb::gil_scoped_release free;
  if (edges.empty() || edges.front() < 0 || !std::is_sorted(edges.begin(), edges.end()) ||
      static_cast<std::size_t>(edges.back()) > text.size()) {
    throw std::invalid_argument("expected rising offsets within the text");
  }
  need_same_length((edges.size() - 1) * self.num_paths(), starts.size());
  need_same_length(starts.size(), sizes.size());
  const JsonFinding found = self.find(std::as_bytes(span(text)), edges, starts.data(), sizes.data());
  return {static_cast<int>(found.fault), found.line, found.place, found.path};
}

}  // namespace

void bind_lines(nb::module_& m) {
  nb::class_<LineScanner>(m, "LineScanner", "The lines of a file that comes in pieces: JSON lines, or rows of a delimiter.")
      .def(
          "__init__", [](LineScanner* self, char delimiter, bool from_start) { new (self) LineScanner(delimiter, from_start); },
          "delimiter"_a = '\0', "from_start"_a = true)
      .def("scan", &scan, "piece"_a.noconvert(), "spans"_a.noconvert(),
           "Fill spans with offset and size of the lines that end in the next piece; gives how many.")
      .def(
          "finish", [](LineScanner& self, IntsOut spans) { return self.finish(span(spans)); }, "spans"_a.noconvert(),
          "The last line, if nothing ended it: 1, or 0.")
      .def_static("most_lines", &LineScanner::most_lines, "bytes"_a, "Places that a piece of that many bytes may need.")
      .def_prop_ro("newlines", &LineScanner::newlines)
      .def_prop_ro("in_quotes", &LineScanner::in_quotes);
  m.def(
      "join_lines",
      [](Bytes text, Ints offsets, Array<std::uint8_t> out) {
        const nb::gil_scoped_release free;
        join_lines(std::as_bytes(span(text)), span(offsets), std::as_writable_bytes(span(out)));
      },
      "text"_a.noconvert(), "offsets"_a.noconvert(), "out"_a.noconvert(), "Copy lines to out, each followed by a newline.");
  nb::class_<JsonFinder>(m, "JsonFinder", "Where values are in JSON objects, one a line. Safe to use from several threads.")
      .def("__init__", &make_finder, "paths"_a, "strict"_a,
           "Of every value its keys, what it must be, and whether it may be missing.")
      .def_prop_ro("num_paths", &JsonFinder::num_paths)
      .def("find", &find, "text"_a.noconvert(), "offsets"_a.noconvert(), "starts"_a.noconvert(), "sizes"_a.noconvert(),
           "Fill starts and sizes, a row for each line, with where values are in the text; -1 for those that are missing. Gives "
           "(fault, line, place, path) of the first line that is not right; a fault of 0: all are.");
}

}  // namespace penstock::bind
