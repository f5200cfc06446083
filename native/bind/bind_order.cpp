#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "bind/array.h"
#include "core/alias.h"
#include "core/balance.h"
#include "core/block_shuffle.h"
#include "core/mixed_order.h"
#include "core/mixture.h"
#include "core/random.h"
#include "core/systematic.h"

namespace penstock::bind {

using namespace nb::literals;

namespace {

void bind_block_epoch(nb::module_& m) {
  nb::class_<BlockEpoch>(m, "BlockEpoch", "One epoch of a block shuffle. Safe to use from several threads.")
      .def(
          "__init__",
          [](BlockEpoch* self, std::uint64_t n, std::uint64_t block, std::uint64_t window, std::uint64_t lanes,
             std::uint64_t sequence_key, std::uint64_t group_root) {
            if (n > kMaxLength || block == 0 || window == 0 || lanes == 0 || lanes > kMaxLength) {
              throw std::invalid_argument("expected n and lanes below 2**63, block, window and lanes of at least 1");
            }
            const nb::gil_scoped_release free;
            new (self) BlockEpoch({n, block, window, lanes}, sequence_key, group_root);
          },
          "n"_a, "block"_a, "window"_a, "lanes"_a, "sequence_key"_a, "group_root"_a)
      .def(
          "run",
          [](BlockEpoch& self, std::uint64_t start, std::uint64_t step, IntsOut out) {
            need_run_below(start, step, out.size(), self.size());
            const nb::gil_scoped_release free;
            self.run(start, step, span(out));
          },
          "start"_a, "step"_a, "out"_a.noconvert(), "Fill out with the ids at start, start + step, ...")
      .def(
          "forward",
          [](BlockEpoch& self, Ints positions, IntsOut out) {
            need_same_length(positions.size(), out.size());
            const nb::gil_scoped_release free;
            need_below(span(positions), self.size());
            self.forward(span(positions), span(out));
          },
          "positions"_a.noconvert(), "out"_a.noconvert(), "Fill out with the ids at positions.")
      .def(
          "inverse",
          [](BlockEpoch& self, Ints ids, IntsOut out) {
            need_same_length(ids.size(), out.size());
            const nb::gil_scoped_release free;
            need_below(span(ids), self.size());
            self.inverse(span(ids), span(out));
          },
          "ids"_a.noconvert(), "out"_a.noconvert(), "Fill out with the positions of ids.");
}

using Matrix = nb::ndarray<const std::uint64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using IntMatrix = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Words = Array<const std::uint64_t>;

std::vector<MixtureSegment> make_segments(const Words& starts, const Words& periods, const Words& units, const Words& counted,
                                          const Matrix& edges, const IntMatrix& before) {
  const std::size_t rows = starts.size();
  const std::size_t sets = before.shape(1);
  const bool fits = rows > 0 && periods.size() == rows && units.size() == rows && counted.size() == rows &&
                    edges.shape(0) == rows && before.shape(0) == rows && edges.shape(1) == sets + 1;
  if (!fits) throw std::invalid_argument("expected one row per segment, and one more edge than data sets");
  std::vector<MixtureSegment> segments;
  for (std::size_t row = 0; row < rows; ++row) {
    if (periods.data()[row] == 0 || periods.data()[row] > kMaxLength)
      throw std::invalid_argument("expected periods in [1, 2**63)");
    const std::uint64_t before_this = row == 0 ? 0 : starts.data()[row - 1] + 1;
    if (starts.data()[row] < before_this || (row == 0 && starts.data()[0] != 0))
      throw std::invalid_argument("expected starts that rise from 0");
    const std::uint64_t* edge = edges.data() + row * (sets + 1);
    const std::int64_t* given = before.data() + row * sets;
    segments.push_back({starts.data()[row],
                        periods.data()[row],
                        units.data()[row],
                        counted.data()[row] != 0,
                        {edge, edge + sets + 1},
                        {given, given + sets}});
  }
  return segments;
}

using Levels = std::vector<std::vector<std::pair<Ints, Ints>>>;

std::vector<std::vector<Deferred>> make_deferred(const Levels& levels) {
  std::vector<std::vector<Deferred>> made;
  for (const auto& level : levels) {
    std::vector<Deferred>& sets = made.emplace_back();
    for (const auto& [numbers, elements] : level) {
      const auto from = span(numbers);
      const auto to = span(elements);
      sets.push_back({{from.begin(), from.end()}, {to.begin(), to.end()}});
    }
  }
  return made;
}

void bind_mixture(nb::module_& m) {
  nb::class_<MixtureLine>(m, "MixtureLine", "The line of a mixture. Immutable; safe to use from several threads.")
      .def(
          "__init__",
          [](MixtureLine* self, Words starts, Words periods, Words units, Words counted, Matrix edges, IntMatrix before,
             const std::vector<std::size_t>& levels, const Levels& deferred) {
            auto segments = make_segments(starts, periods, units, counted, edges, before);
            if (!levels.empty()) need_same_length(levels.size(), segments.size());
            for (std::size_t row = 0; row < levels.size(); ++row) segments[row].level = levels[row];
            new (self) MixtureLine(std::move(segments), make_deferred(deferred));
          },
          "starts"_a.noconvert(), "periods"_a.noconvert(), "units"_a.noconvert(), "counted"_a.noconvert(), "edges"_a.noconvert(),
          "before"_a.noconvert(), "levels"_a = std::vector<std::size_t>{}, "deferred"_a = Levels{},
          "Segments; and the level of each, from 1 on, of (numbers, elements) of deferred runs of every data set.")
      .def(
          "at",
          [](const MixtureLine& self, std::uint64_t root, Ints positions, Array<std::int32_t> which, IntsOut element,
             const std::optional<Ints>& before) {
            need_same_length(positions.size(), which.size());
            need_same_length(positions.size(), element.size());
            const nb::gil_scoped_release free;
            need_below(span(positions), kMaxLength);
            self.at(root, span(positions), span(which), span(element), before ? span(*before) : std::span<const std::int64_t>{});
          },
          "root"_a, "positions"_a.noconvert(), "which"_a.noconvert(), "element"_a.noconvert(),
          "before"_a.noconvert().none() = nb::none(),
          "Fill which and element with the data set and first element at each position, with before[k] added for data set k.")
      .def(
          "given_before",
          [](const MixtureLine& self, std::uint64_t position) {
            if (position >= kMaxLength) throw nb::index_error("expected a position below 2**62");
            return self.given_before(position);
          },
          "position"_a, "Elements that each data set has given before the period of a position.");
}

void bind_alias(nb::module_& m) {
  using Weights = Array<const double>;
  using Columns = nb::ndarray<const std::uint32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
  using ColumnsOut = nb::ndarray<std::uint32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
  static_assert(sizeof(AliasColumn) == 2 * sizeof(std::uint32_t));
  nb::class_<AliasTable>(m, "AliasTable", "Draws in proportion to weights. Immutable; safe to use from several threads.")
      .def(
          "__init__",
          [](AliasTable* self, Weights weights) {
            const nb::gil_scoped_release free;
            new (self) AliasTable(span(weights));
          },
          "weights"_a.noconvert())
      .def_static(
          "of_columns",
          [](Columns columns) {
            const nb::gil_scoped_release free;
            std::vector<AliasColumn> copy(columns.shape(0));
            if (!copy.empty()) std::memcpy(copy.data(), columns.data(), copy.size() * sizeof(AliasColumn));
            return AliasTable(std::span<const AliasColumn>(copy));
          },
          "columns"_a.noconvert(), "The table that has these columns.")
      .def(
          "copy_columns",
          [](const AliasTable& self, ColumnsOut out) {
            need_same_length(self.size(), out.shape(0));
            const nb::gil_scoped_release free;
            std::memcpy(out.data(), self.columns().data(), self.size() * sizeof(AliasColumn));
          },
          "out"_a.noconvert(), "Fill out with (bound, other id) of every column.")
      .def(
          "run",
          [](const AliasTable& self, std::uint64_t key, std::uint64_t start, std::uint64_t step, IntsOut out) {
            const nb::gil_scoped_release free;
            self.run(key, start, step, span(out));
          },
          "key"_a, "start"_a, "step"_a, "out"_a.noconvert(), "Fill out with draws for positions start, start + step, ...")
      .def(
          "at",
          [](const AliasTable& self, std::uint64_t key, Ints positions, IntsOut out) {
            need_same_length(positions.size(), out.size());
            const nb::gil_scoped_release free;
            self.at(key, span(positions), span(out));
          },
          "key"_a, "positions"_a.noconvert(), "out"_a.noconvert(), "Fill out with draws for positions.")
      .def("by_word", &AliasTable::by_word, "word"_a, "The id that one word draws.")
      .def(
          "mark_drawn",
          [](const AliasTable& self, Array<std::uint8_t> out) {
            need_same_length(self.size(), out.size());
            const nb::gil_scoped_release free;
            self.mark_drawn(span(out));
          },
          "out"_a.noconvert(), "Fill out with 1 for ids that can be drawn, 0 for others.");
}

// A node of a tree of orders, and the objects it computes with.
struct BoundOrder {
  std::shared_ptr<const OrderNode> node;
  std::vector<nb::object> kept;
};

using BoundPart = std::tuple<nb::object, std::int64_t, std::int64_t>;

template <class Epoch>
std::shared_ptr<const OrderNode> leaf_of(Epoch& epoch, std::int32_t leaf) {
  return std::make_shared<OrderLeaf>(
      [&epoch](auto positions, auto out) { epoch.forward(positions, out); },
      [&epoch](std::int64_t first, auto out) { epoch.run(static_cast<std::uint64_t>(first), 1, out); }, leaf);
}

BoundOrder order_leaf(nb::object epoch, std::int32_t leaf) {
  std::shared_ptr<const OrderNode> made;
  if (nb::isinstance<Permutation>(epoch)) {
    made = leaf_of(nb::cast<const Permutation&>(epoch), leaf);
  } else if (nb::isinstance<BlockEpoch>(epoch)) {
    made = leaf_of(nb::cast<BlockEpoch&>(epoch), leaf);
  } else if (epoch.is_none()) {
    made = std::make_shared<OrderLeaf>(nullptr, nullptr, leaf);
  } else {
    throw nb::type_error("expected a Permutation, a BlockEpoch or None");
  }
  return {std::move(made), {std::move(epoch)}};
}

BoundOrder order_mix(nb::object line, std::uint64_t root, std::vector<std::int64_t> before, const std::vector<BoundPart>& parts) {
  std::vector<MixedPart> made;
  std::vector<nb::object> kept{line};
  for (const auto& [order, base, length] : parts) {
    made.push_back({nb::cast<const BoundOrder&>(order).node, base, length});
    kept.push_back(order);
  }
  return {std::make_shared<OrderMix>(nb::cast<const MixtureLine&>(line), root, std::move(before), std::move(made)),
          std::move(kept)};
}

void bind_order_tree(nb::module_& m) {
  nb::class_<BoundOrder>(m, "OrderNode", "Mixtures, also in mixtures, as a tree. Safe to use from several threads.")
      .def_static("leaf", &order_leaf, "epoch"_a.none(), "leaf"_a,
                  "An epoch of an order (None: in sequence) of a leaf's records.")
      .def_static("mix", &order_mix, "line"_a, "root"_a, "before"_a, "parts"_a,
                  "A mixture: (order, first element of its epoch, elements of its epoch) of every data set.")
      .def(
          "at",
          [](const BoundOrder& self, Ints positions, Array<std::int32_t> leaves, IntsOut ids) {
            need_same_length(positions.size(), leaves.size());
            need_same_length(positions.size(), ids.size());
            const nb::gil_scoped_release free;
            need_below(span(positions), kMaxLength);
            return self.node->at(span(positions), leaves.data(), ids.data());
          },
          "positions"_a.noconvert(), "leaves"_a.noconvert(), "ids"_a.noconvert(),
          "Fill leaves and ids with what is at positions; False if one of them is in an epoch that the tree does not have.")
      .def(
          "run",
          [](const BoundOrder& self, std::uint64_t first, Array<std::int32_t> leaves, IntsOut ids) {
            need_same_length(leaves.size(), ids.size());
            need_run_below(first, 1, ids.size(), kMaxLength);
            const nb::gil_scoped_release free;
            return self.node->run(static_cast<std::int64_t>(first), {leaves.data(), leaves.size()}, span(ids));
          },
          "first"_a, "leaves"_a.noconvert(), "ids"_a.noconvert(), "The same for positions first, first + 1, ...");
}

}  // namespace

void bind_order(nb::module_& m) {
  bind_block_epoch(m);
  bind_mixture(m);
  bind_alias(m);
  bind_order_tree(m);
  m.def(
      "random_run",
      [](std::uint64_t n, std::uint64_t key, std::uint64_t start, std::uint64_t step, IntsOut out) {
        if (n == 0 && out.size() > 0) throw nb::index_error("expected n of at least 1 to draw from, got 0");
        const nb::gil_scoped_release free;
        if (n > 0) random_run(n, key, start, step, span(out));
      },
      "n"_a, "key"_a, "start"_a, "step"_a, "out"_a.noconvert(),
      "Fill out with draws below n for positions start, start + step, ...");
  m.def(
      "random_at",
      [](std::uint64_t n, std::uint64_t key, Ints positions, IntsOut out) {
        need_same_length(positions.size(), out.size());
        if (n == 0 && out.size() > 0) throw nb::index_error("expected n of at least 1 to draw from, got 0");
        const nb::gil_scoped_release free;
        if (n > 0) random_at(n, key, span(positions), span(out));
      },
      "n"_a, "key"_a, "positions"_a.noconvert(), "out"_a.noconvert(), "Fill out with draws below n for positions.");
  m.def(
      "systematic",
      [](std::uint64_t n, std::uint64_t size, std::uint64_t offset, Ints positions, IntsOut out) {
        if (size == 0 || size > n || offset >= n) throw std::invalid_argument("expected 1 <= size <= n and offset < n");
        need_same_length(positions.size(), out.size());
        const nb::gil_scoped_release free;
        need_below(span(positions), size);
        systematic(n, size, offset, span(positions), span(out));
      },
      "n"_a, "size"_a, "offset"_a, "positions"_a.noconvert(), "out"_a.noconvert(),
      "Fill out with evenly spread places in [0, n).");
  m.attr("MAX_COST") = kMaxCost;
  m.def(
      "deal",
      [](Array<const std::uint64_t> costs, Ints room, std::size_t micro_batches, IntsOut out) {
        const nb::gil_scoped_release free;
        deal(span(costs), span(room), micro_batches, span(out));
      },
      "costs"_a.noconvert(), "room"_a.noconvert(), "micro_batches"_a, "out"_a.noconvert(),
      "Fill out with samples dealt to slots of those sizes, slot after slot, so that slots cost about the same.");
  m.def(
      "piece_costs",
      [](Ints first, Ints owner, Ints count, std::uint64_t linear, std::uint64_t quadratic, Array<std::uint64_t> out) {
        const nb::gil_scoped_release free;
        piece_costs(span(first), span(owner), span(count), linear, quadratic, span(out));
      },
      "first"_a.noconvert(), "owner"_a.noconvert(), "count"_a.noconvert(), "linear"_a, "quadratic"_a, "out"_a.noconvert(),
      "Fill out with the costs of samples made of runs of documents.");
}

}  // namespace penstock::bind
