#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bind/array.h"
#include "core/permutation.h"
#include "core/seed.h"

namespace penstock::bind {

using namespace nb::literals;

void bind_permutation(nb::module_& m) {
  m.attr("TABLE_LIMIT") = kTableLimit;

  nb::enum_<Simd>(m, "Simd", "An instruction set; every level gives identical results.")
      .value("PLAIN", Simd::plain)
      .value("AVX2", Simd::avx2)
      .value("AVX512", Simd::avx512)
      .value("NEON", Simd::neon);
  m.def("available_simd", &available_simd, "The levels this processor can run, slowest first.");

  m.def("finalize", &finalize, "word"_a, "The SplitMix64 finalizer.");
  m.def("absorb", &absorb, "hash"_a, "word"_a, "Mix one more word into a hash.");
  m.def(
      "absorb_strings",
      [](std::uint64_t hash, Array<const std::uint8_t> values, Ints offsets, Array<std::uint64_t> out) {
        need_same_length(offsets.size(), out.size() + 1);
        const std::span<const std::int64_t> ends = span(offsets);
        const nb::gil_scoped_release free;
        if (ends[0] < 0 || !std::is_sorted(ends.begin(), ends.end()) || static_cast<std::size_t>(ends.back()) > values.size()) {
          throw std::invalid_argument("expected offsets that rise from 0 to at most the number of values");
        }
        const std::span<const std::byte> bytes = std::as_bytes(span(values));
        for (std::size_t i = 0; i < out.size(); ++i) {
          const auto start = static_cast<std::size_t>(ends[i]);
          out.data()[i] = absorb_bytes(hash, bytes.subspan(start, static_cast<std::size_t>(ends[i + 1]) - start));
        }
      },
      "hash"_a, "values"_a.noconvert(), "offsets"_a.noconvert(), "out"_a.noconvert(),
      "Fill out with the hash into which string i, values[offsets[i]:offsets[i + 1]], was mixed.");
  m.def("derive_key", &derive_key, "seed"_a, "epoch"_a, "purpose"_a, "number"_a, "The key of one random decision.");

  nb::class_<Permutation>(m, "Permutation", "A keyed bijection of [0, n). Immutable; safe to use from several threads.")
      .def(
          "__init__",
          [](Permutation* self, std::uint64_t n, std::uint64_t key, std::optional<Simd> level) {
            if (n > kMaxLength) throw std::invalid_argument("expected n below 2**63, got " + std::to_string(n));
            const std::vector<Simd> levels = available_simd();
            if (level && std::find(levels.begin(), levels.end(), *level) == levels.end()) {
              throw std::invalid_argument("this processor does not have the instruction set asked for");
            }
            const nb::gil_scoped_release free;
            new (self) Permutation(n, key, level.value_or(levels.back()));
          },
          "n"_a, "key"_a, "simd"_a = nb::none())
      .def("__len__", &Permutation::size)
      .def(
          "run",
          [](const Permutation& self, std::uint64_t start, std::uint64_t step, IntsOut out) {
            need_run_below(start, step, out.size(), self.size());
            const nb::gil_scoped_release free;
            self.run(start, step, span(out));
          },
          "start"_a, "step"_a, "out"_a.noconvert(), "Fill out with the images of start, start + step, ...")
      .def(
          "forward",
          [](const Permutation& self, Ints positions, IntsOut out) {
            need_same_length(positions.size(), out.size());
            const nb::gil_scoped_release free;
            need_below(span(positions), self.size());
            self.forward(span(positions), span(out));
          },
          "positions"_a.noconvert(), "out"_a.noconvert(), "Fill out with the images of positions.")
      .def(
          "inverse",
          [](const Permutation& self, Ints indices, IntsOut out) {
            need_same_length(indices.size(), out.size());
            const nb::gil_scoped_release free;
            need_below(span(indices), self.size());
            self.inverse(span(indices), span(out));
          },
          "indices"_a.noconvert(), "out"_a.noconvert(), "Fill out with the positions of indices.");
}

}  // namespace penstock::bind
