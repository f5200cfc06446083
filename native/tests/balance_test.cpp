#include "core/balance.h"

#include <cstdint>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "core/seed.h"

using namespace penstock;

namespace {

using Costs = std::vector<std::uint64_t>;
using Ints = std::vector<std::int64_t>;

Ints dealt(const Costs& costs, const Ints& room, std::size_t micro_batches = 1) {
  Ints out(costs.size(), -1);
  deal(costs, room, micro_batches, out);
  return out;
}

void samples_go_to_the_smallest_load_with_room() {
  check_equal(dealt({1, 2, 3, 4}, {2, 2}), {0, 3, 1, 2});
  check_equal(dealt({5, 5, 5, 5}, {2, 2}), {0, 2, 1, 3}, "equal costs in turn");
  check_equal(dealt({9, 1, 1, 1, 1, 1}, {3, 3}), {0, 4, 5, 1, 2, 3}, "a full slot takes no more");
  check_equal(dealt({7, 3, 9}, {3}), {0, 1, 2}, "one slot");
  check_equal(dealt({4, 8, 6}, {2, 1}), {0, 1, 2}, "slots of different sizes");
  check_equal(dealt({4, 8}, {0, 1, 0, 1}), {1, 0}, "slots without room");
  check_equal(dealt({}, {0, 0}), {}, "no samples");
}

void micro_batches_are_balanced_before_ranks() {
  // Slots are (rank 0, micro 0), (rank 0, micro 1), (rank 1, micro 0), (rank 1, micro 1).
  check_equal(dealt({8, 7, 2, 1}, {1, 1, 1, 1}, 2), {0, 2, 3, 1}, "the rank with less is first in the second micro-batch");
  check_equal(dealt({1, 1, 1}, {1, 1, 1, 0}, 2), {0, 1, 2}, "a short batch");
}

void every_sample_is_dealt_once_whatever_the_costs() {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::size_t world = 1 + seed % 7, micro = 1 + seed % 3, each = seed % 5;
    Costs costs(world * micro * each);
    for (std::size_t i = 0; i < costs.size(); ++i) costs[i] = absorb(seed, i) % (seed % 2 == 0 ? 4 : kMaxCost + 1);
    const Ints room(world * micro, static_cast<std::int64_t>(each));
    Ints found = dealt(costs, room, micro);
    for (std::size_t slot = 0; slot < room.size(); ++slot)
      check(std::is_sorted(found.begin() + static_cast<std::ptrdiff_t>(slot * each),
                           found.begin() + static_cast<std::ptrdiff_t>((slot + 1) * each)),
            "samples of a slot rise");
    std::sort(found.begin(), found.end());
    Ints all(costs.size());
    std::iota(all.begin(), all.end(), 0);
    check_equal(found, all, "samples");
  }
}

void what_does_not_fit_is_refused() {
  check_throws<std::invalid_argument>([] { dealt({1, 2}, {1}); });
  check_throws<std::invalid_argument>([] { dealt({1, 2}, {3}); });
  check_throws<std::invalid_argument>([] { dealt({1, 2}, {3, -1}); });
  check_throws<std::invalid_argument>([] { dealt({1, 2}, {1, 1}, 0); });
  check_throws<std::invalid_argument>([] { dealt({1, 2, 3}, {1, 1, 1}, 2); });
  check_throws<std::invalid_argument>([] { dealt({kMaxCost + 1}, {1}); });
  check_throws<std::invalid_argument>([] {
    Ints out(1);
    deal(Costs{1, 2}, Ints{2}, 1, out);
  });
  check_equal(dealt({kMaxCost, kMaxCost, 0, kMaxCost}, {2, 2}), {0, 3, 1, 2}, "the largest costs");
}

Costs costs_of(const Ints& first, const Ints& owner, const Ints& count, std::uint64_t linear, std::uint64_t quadratic) {
  Costs out(first.size() - 1);
  piece_costs(first, owner, count, linear, quadratic, out);
  return out;
}

void pieces_cost_by_their_lengths() {
  // Documents 4 (BOS, text), 7, padding; then 4 again with a second piece behind document 5.
  const Ints first{0, 4, 7, 7}, owner{4, 4, 7, -1, 4, 5, 4}, count{1, 9, 3, 100, 2, 2, 6};
  check_equal(costs_of(first, owner, count, 1, 0), {13, 10, 0}, "tokens");
  check_equal(costs_of(first, owner, count, 0, 1), {109, 44, 0}, "squares");
  check_equal(costs_of(first, owner, count, 24, 1), {13 * 24 + 109, 240 + 44, 0}, "both");
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  check_equal(costs_of({0, 2}, {1, 2}, {huge, huge}, 1, 1), {std::uint64_t{1} << 63}, "no overflow");
  check_equal(costs_of({0, 1}, {1}, {1}, ~std::uint64_t{0}, ~std::uint64_t{0}), {std::uint64_t{1} << 63}, "no overflow");
  check_throws<std::invalid_argument>([] { costs_of({0, 2}, {1}, {1}, 1, 0); });
  check_throws<std::invalid_argument>([] { costs_of({1, 0}, {1}, {1}, 1, 0); });
  check_throws<std::invalid_argument>([] { costs_of({-1, 0}, {1}, {1}, 1, 0); });
  check_throws<std::invalid_argument>([] { costs_of({0, 1}, {1, 2}, {1}, 1, 0); });
}

}  // namespace

int main() {
  samples_go_to_the_smallest_load_with_room();
  micro_batches_are_balanced_before_ranks();
  every_sample_is_dealt_once_whatever_the_costs();
  what_does_not_fit_is_refused();
  pieces_cost_by_their_lengths();
  return finish();
}
