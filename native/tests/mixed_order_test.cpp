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
  return std::make_shared<OrderLeaf>(forward, leaf);
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

void a_mixture_in_a_mixture_is_that_of_its_lines() {
  const MixtureLine line = even_line();
  const auto inner = std::make_shared<OrderMix>(
      line, 5, std::vector<std::int64_t>{100, 7},
      std::vector<MixedPart>{{backwards(1000, 3), 100, 1000}, {std::make_shared<OrderLeaf>(nullptr, 4), 0, 1000}});
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

void positions_in_another_epoch_are_refused() {
  const MixtureLine line = even_line();
  const OrderMix mix(line, 6, {0, 0}, {{backwards(20, 0), 0, 20}, {backwards(15, 1), 0, 15}});
  check(at(mix, {0, 29}).is_found, "15 of each");
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
  positions_in_another_epoch_are_refused();
  what_was_given_before_a_period_is_known();
  return finish();
}
