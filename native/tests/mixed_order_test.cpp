#include "core/mixed_order.h"

#include <numeric>

#include "check.h"

using namespace penstock;

namespace {

constexpr std::uint64_t kHalf = std::uint64_t{1} << 62;  // in units of 2^-63

// Two data sets in turn by lot, in periods of ten.
MixtureLine even_line() { return MixtureLine({{0, 10, 1, false, {0, kHalf, 2 * kHalf}, {0, 0}}}); }

std::shared_ptr<const OrderNode> backwards(std::int64_t length, std::int32_t leaf) {
  const auto forward = [length](std::span<const std::int64_t> positions, std::span<std::int64_t> out) {
    for (std::size_t i = 0; i < positions.size(); ++i) out[i] = length - 1 - positions[i];
  };
  const auto run = [length](std::int64_t first, std::span<std::int64_t> out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = length - 1 - first - static_cast<std::int64_t>(i);
  };
  return std::make_shared<OrderLeaf>(forward, run, leaf);
}

struct Found {
  bool is_found;
  std::vector<std::int32_t> leaves;
  std::vector<std::int64_t> ids;
};

Found at(const OrderNode& node, const std::vector<std::int64_t>& positions) {
  Found found{false, std::vector<std::int32_t>(positions.size()), std::vector<std::int64_t>(positions.size())};
  found.is_found = node.at(positions, found.leaves.data(), found.ids.data());
  return found;
}

// The same by run(), which gives nothing else.
Found run(const OrderNode& node, std::int64_t first, std::size_t count) {
  Found found{false, std::vector<std::int32_t>(count), std::vector<std::int64_t>(count)};
  found.is_found = node.run(first, found.leaves, found.ids);
  return found;
}

void a_mixture_in_a_mixture_is_that_of_its_lines() {
  const MixtureLine line = even_line();
  const auto inner = std::make_shared<OrderMix>(
      line, 5, std::vector<std::int64_t>{100, 7},
      std::vector<MixedPart>{{backwards(1000, 3), 100, 1000}, {std::make_shared<OrderLeaf>(nullptr, nullptr, 4), 0, 1000}});
  const OrderMix outer(line, 6, {0, 0}, {{backwards(1000, 2), 0, 1000}, {inner, 0, 1000}});
  std::vector<std::int64_t> positions(200);
  std::iota(positions.begin(), positions.end(), 13);
  const Found found = at(outer, positions);
  check(found.is_found, "all positions are in their epochs");
  std::vector<std::int32_t> which(1);
  std::vector<std::int64_t> element(1);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    line.at(6, {&positions[i], 1}, which, element);
    std::int32_t leaf = 2;
    std::int64_t id = 999 - element[0];
    if (which[0] == 1) {
      const std::int64_t own = element[0];
      line.at(5, {&own, 1}, which, element, std::vector<std::int64_t>{100, 7});
      leaf = 3 + which[0];
      id = which[0] == 0 ? 999 - (element[0] - 100) : element[0];
    }
    check_equal(found.leaves[i], leaf, say("leaf at ", positions[i]));
    check_equal(found.ids[i], id, say("record at ", positions[i]));
  }
}

// From every position, over any number of periods, whole or in part; also where only at() can say it.
void runs_are_what_is_at_their_positions() {
  const MixtureLine line = even_line();
  const MixtureLine several({{0, 10, 1, false, {0, kHalf, 2 * kHalf}, {0, 0}},
                             {40, 6, 1, true, {0, 2, 6}, {20, 20}},
                             {46, 7, 1, false, {0, kHalf / 2, 2 * kHalf}, {22, 24}}});
  const MixtureLine pairs({{0, 10, 2, false, {0, kHalf, 2 * kHalf}, {0, 0}}});
  for (const MixtureLine* const outside : {&line, &several, &pairs}) {
    const auto inner = std::make_shared<OrderMix>(
        line, 5, std::vector<std::int64_t>{100, 7},
        std::vector<MixedPart>{{backwards(1000, 3), 100, 1000}, {std::make_shared<OrderLeaf>(nullptr, nullptr, 4), 0, 1000}});
    const OrderMix outer(*outside, 6, {0, 0}, {{backwards(1000, 2), 0, 1000}, {inner, 0, 1000}});
    for (std::int64_t first = 0; first < 60; ++first) {
      for (const std::size_t count : {1, 5, 9, 10, 11, 20, 33, 100}) {
        std::vector<std::int64_t> positions(count);
        std::iota(positions.begin(), positions.end(), first);
        const Found one = at(outer, positions);
        const Found other = run(outer, first, count);
        check(one.is_found && other.is_found, "all positions are in their epochs");
        check_equal(other.leaves, one.leaves, say("leaves of ", count, " from ", first));
        check_equal(other.ids, one.ids, say("records of ", count, " from ", first));
      }
    }
  }
}

void positions_in_another_epoch_are_refused() {
  const MixtureLine line = even_line();
  const OrderMix mix(line, 6, {0, 0}, {{backwards(20, 0), 0, 20}, {backwards(15, 1), 0, 15}});
  check(at(mix, {0, 29}).is_found, "15 of each");
  check(run(mix, 0, 30).is_found, "15 of each");
  check(run(mix, 11, 19).is_found, "15 of each");
  check(!run(mix, 0, 40).is_found, "the second has no more");
  check(!run(mix, 30, 10).is_found, "the second has no more");
  check(!at(mix, {30, 31, 32, 33, 34, 35, 36, 37, 38, 39}).is_found, "the second has no more");
  const OrderMix later(line, 6, {0, 0}, {{backwards(20, 0), 0, 20}, {backwards(15, 1), 15, 15}});
  check(!at(later, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}).is_found, "the second is not there yet");
  check_throws<std::invalid_argument>([&] { OrderMix(line, 6, {0}, {}); });
}

void what_was_given_before_a_period_is_known() {
  const MixtureLine line({{0, 10, 1, false, {0, kHalf, 2 * kHalf}, {0, 3}}, {40, 6, 1, true, {0, 2, 6}, {20, 23}}});
  for (const auto& [position, first, second] : std::vector<std::tuple<std::uint64_t, std::int64_t, std::int64_t>>{
           {0, 0, 3}, {9, 0, 3}, {10, 5, 8}, {39, 15, 18}, {40, 20, 23}, {45, 20, 23}}) {
    check_equal(line.given_before(position), std::vector<std::int64_t>{first, second}, say("before ", position));
  }
}

}  // namespace

int main() {
  a_mixture_in_a_mixture_is_that_of_its_lines();
  runs_are_what_is_at_their_positions();
  positions_in_another_epoch_are_refused();
  what_was_given_before_a_period_is_known();
  return finish();
}
