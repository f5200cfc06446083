#include "core/mixture.h"

#include <algorithm>
#include <cstdint>

#include "check.h"
#include "core/seed.h"

using namespace penstock;

namespace {

using Wide = unsigned __int128;

constexpr std::uint64_t kOne = std::uint64_t{1} << 63;  // the weight of everything

struct Item {
  std::int32_t which;
  std::int64_t element;

  bool operator==(const Item&) const = default;
  auto operator<=>(const Item&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const Item& item) {
    return out << "element " << item.element << " of set " << item.which;
  }
};

std::vector<Item> at(const MixtureLine& line, std::uint64_t root, const std::vector<std::int64_t>& positions) {
  std::vector<std::int32_t> which(positions.size());
  std::vector<std::int64_t> element(positions.size());
  line.at(root, positions, which, element);
  std::vector<Item> items;
  for (std::size_t i = 0; i < positions.size(); ++i) items.push_back({which[i], element[i]});
  return items;
}

std::vector<std::int64_t> count_from(std::uint64_t start, std::uint64_t count) {
  std::vector<std::int64_t> positions(count);
  for (std::uint64_t i = 0; i < count; ++i) positions[i] = static_cast<std::int64_t>(start + i);
  return positions;
}

std::vector<std::uint64_t> cumulative(const std::vector<std::uint64_t>& parts) {
  std::vector<std::uint64_t> edges{0};
  for (const std::uint64_t part : parts) edges.push_back(edges.back() + part);
  return edges;
}

// Cumulative weights of parts that sum to `whole`, in units of 2^-63.
std::vector<std::uint64_t> weights(const std::vector<std::uint64_t>& parts) {
  std::vector<std::uint64_t> edges = cumulative(parts);
  const std::uint64_t whole = edges.back();
  for (std::uint64_t& edge : edges) edge = static_cast<std::uint64_t>(static_cast<Wide>(edge) * kOne / whole);
  return edges;
}

// Items of set k among the first t positions of a share segment, as mixture.h defines them.
std::uint64_t given(const MixtureSegment& s, std::size_t k, std::uint64_t t) {
  const auto below = [&](std::size_t edge) { return static_cast<std::uint64_t>(static_cast<Wide>(t) * s.edges[edge] / kOne); };
  return below(k + 1) - below(k);
}

// Lays out whole periods one after the other and counts what each set has given so far.
std::vector<Item> naive_periods(const MixtureSegment& s, std::uint64_t num_periods, std::uint64_t root) {
  std::vector<std::int64_t> next = s.before;
  std::vector<Item> line;
  for (std::uint64_t number = 0; number < num_periods; ++number) {
    std::vector<Item> slots;
    for (std::size_t k = 0; k < next.size(); ++k) {
      const std::uint64_t count =
          s.counted ? s.edges[k + 1] - s.edges[k] : given(s, k, (number + 1) * s.period) - given(s, k, number * s.period);
      for (std::uint64_t i = 0; i < count; ++i, next[k] += static_cast<std::int64_t>(s.unit)) {
        slots.push_back({static_cast<std::int32_t>(k), next[k]});
      }
    }
    check_equal(slots.size(), s.period, "slots of a period");
    const Permutation permutation(s.period, absorb(root, s.start + number * s.period));
    for (std::uint64_t i = 0; i < s.period; ++i) line.push_back(slots[permutation.forward(i)]);
  }
  return line;
}

void check_alone(const MixtureSegment& s, std::uint64_t num_periods, std::uint64_t root, const std::string& name) {
  const std::vector<Item> found = at(MixtureLine({s}), root, count_from(s.start, num_periods * s.period));
  check_equal(found, naive_periods(s, num_periods, root), name);
}

void share_segments_equal_the_naive_loop() {
  const std::vector<std::vector<std::uint64_t>> mixes{{1}, {1, 1}, {1, 2, 3}, {7, 0, 3}, {0, 5, 0}, {13, 1, 29, 57}, {999, 1}};
  for (const auto& mix : mixes) {
    const std::vector<std::int64_t> before(mix.size(), 1000);
    for (const std::uint64_t unit : {1U, 3U, 32U}) {
      for (const std::uint64_t period : {1000U, 1024U, 1777U}) {
        const std::string name = say(mix.size(), " sets, period ", period, " unit ", unit);
        check_alone({50, period, unit, false, weights(mix), before}, 6, 17, name);
      }
    }
  }
}

void counted_segments_equal_the_naive_loop() {
  for (const std::uint64_t unit : {1U, 4U}) {
    check_alone({7, 10, unit, true, cumulative({3, 0, 7}), {5, 6, 7}}, 1, 3, say("unit ", unit));
    check_alone({0, 1, unit, true, cumulative({0, 1}), {0, 0}}, 1, 3, say("one position, unit ", unit));
    check_alone({9, 65'536, unit, true, cumulative({60'000, 5'536}), {1, 2}}, 1, 3, say("the longest table, unit ", unit));
  }
}

void periods_too_long_for_a_table_equal_the_naive_loop() {
  check_alone({12, 65'537, 1, false, weights({5, 0, 11, 3}), {0, 10, 20, 30}}, 3, 23, "share");
  check_alone({12, 200'000, 8, false, weights({1, 1, 100'000}), {0, 10, 20}}, 2, 23, "share with small weights");
  check_alone({12, 100'000, 2, true, cumulative({0, 1, 70'000, 0, 29'999, 0}), {1, 2, 3, 4, 5, 6}}, 1, 23, "counted");
}

void more_sets_than_a_table_can_number_equal_the_naive_loop() {
  std::vector<std::uint64_t> counts(70'000);
  for (std::size_t k = 0; k < counts.size(); k += 2) counts[k] = 1;
  check_alone({0, 35'000, 2, true, cumulative(counts), std::vector<std::int64_t>(70'000, 4)}, 1, 1, "70,000 sets");
}

// A share segment of three periods, a counted one, and a share segment with other weights and another unit.
std::vector<MixtureSegment> three_segments() {
  MixtureSegment first{0, 100, 1, false, weights({1, 2, 4}), {0, 0, 0}};
  MixtureSegment second{300, 37, 1, true, cumulative({30, 7, 0}), {0, 0, 0}};
  MixtureSegment third{337, 64, 4, false, weights({5, 1, 1}), {0, 0, 0}};
  for (std::size_t k = 0; k < 3; ++k) {
    second.before[k] = static_cast<std::int64_t>(given(first, k, 300));
    third.before[k] = second.before[k] + static_cast<std::int64_t>(second.edges[k + 1] - second.edges[k]);
  }
  return {first, second, third};
}

std::vector<Item> naive_line(const std::vector<MixtureSegment>& segments, std::uint64_t root) {
  std::vector<Item> line;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const bool last = s + 1 == segments.size();
    const std::uint64_t num_periods = last ? 5 : (segments[s + 1].start - segments[s].start) / segments[s].period;
    for (const Item& item : naive_periods(segments[s], num_periods, root)) line.push_back(item);
  }
  return line;
}

void a_line_of_segments_equals_the_naive_loop_in_any_order_of_positions() {
  const MixtureLine line(three_segments());
  const std::vector<Item> expected = naive_line(three_segments(), 99);
  check_equal(at(line, 99, count_from(0, expected.size())), expected, "in order");
  std::vector<std::int64_t> jumping;
  for (std::uint64_t i = 0; i < expected.size(); ++i) jumping.push_back(static_cast<std::int64_t>(i * 271 % expected.size()));
  std::vector<Item> jumped;
  for (const std::int64_t p : jumping) jumped.push_back(expected[static_cast<std::size_t>(p)]);
  check_equal(at(line, 99, jumping), jumped, "jumping");
  check_equal(at(line, 99, {}), {}, "nothing");
  check(at(line, 98, count_from(0, 100)) != at(line, 99, count_from(0, 100)), "roots 98 and 99 give the same order");
}

void every_element_of_a_set_is_given_once() {
  const MixtureSegment segment{0, 1000, 4, false, weights({13, 1, 29, 57}), {0, 100, 200, 300}};
  std::vector<Item> items = at(MixtureLine({segment}), 5, count_from(0, 20'000));
  std::sort(items.begin(), items.end());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const bool first = i == 0 || items[i - 1].which != items[i].which;
    const std::int64_t expected = first ? segment.before[static_cast<std::size_t>(items[i].which)] : items[i - 1].element + 4;
    check_equal(items[i].element, expected, say("element ", i));
  }
  std::vector<std::int64_t> totals(4);
  for (const Item& item : items) ++totals[static_cast<std::size_t>(item.which)];
  const std::vector<std::int64_t> quotas{13 * 200, 1 * 200, 29 * 200, 57 * 200};
  for (std::size_t k = 0; k < 4; ++k) {
    check(std::abs(totals[k] - quotas[k]) <= 1, say("set ", k, ": expected ", quotas[k], " to within one, found ", totals[k]));
  }
}

// Far along the line the products need 126 bits.
void far_periods_do_not_overflow() {
  const std::uint64_t period = 1021;
  const MixtureSegment segment{5, period, 1, false, weights({3, 1, 7}), {11, 12, 13}};
  for (const std::uint64_t number : {std::uint64_t{1'000'000'007}, (kOne - 10 * period) / period}) {
    MixtureSegment alone = segment;  // the same period as a counted segment of its own
    alone.start = segment.start + number * period;
    alone.counted = true;
    std::vector<std::uint64_t> counts;
    for (std::size_t k = 0; k < 3; ++k) {
      alone.before[k] += static_cast<std::int64_t>(given(segment, k, number * period));
      counts.push_back(given(segment, k, (number + 1) * period) - given(segment, k, number * period));
    }
    alone.edges = cumulative(counts);
    const std::vector<Item> found = at(MixtureLine({segment}), 31, count_from(alone.start, period));
    check_equal(found, naive_periods(alone, 1, 31), say("period ", number));
  }
}

void shares_that_do_not_fill_a_period_are_refused() {
  const auto part = [](double x) { return static_cast<std::uint64_t>(x * static_cast<double>(kOne)); };
  const MixtureSegment falling{0, 3, 1, false, {0, part(0.45), part(0.55), kOne}, {0, 0, 0}};
  const MixtureSegment short_of_it{0, 3, 1, true, {0, 1, 2}, {0, 0}};
  for (const MixtureSegment& segment : {falling, short_of_it}) {
    check_throws<std::invalid_argument>([&] { at(MixtureLine({segment}), 1, {6, 7, 8}); });
  }
}

}  // namespace

int main() {
  shares_that_do_not_fill_a_period_are_refused();
  share_segments_equal_the_naive_loop();
  counted_segments_equal_the_naive_loop();
  periods_too_long_for_a_table_equal_the_naive_loop();
  more_sets_than_a_table_can_number_equal_the_naive_loop();
  a_line_of_segments_equals_the_naive_loop_in_any_order_of_positions();
  every_element_of_a_set_is_given_once();
  far_periods_do_not_overflow();
  return finish();
}
