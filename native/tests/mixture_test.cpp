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

// A line that an amendment cuts within a period: what the period had not given comes next, in rising order.
struct Amended {
  std::vector<MixtureSegment> segments;
  std::vector<std::vector<Deferred>> deferred;
  std::vector<Item> expected;
};

constexpr std::uint64_t kCut = 130, kBehind = 64 * 8;

Amended amended_line(const std::vector<std::int64_t>& had, std::uint64_t unit, std::uint64_t root) {
  const MixtureSegment first{0, 100, unit, false, weights({1, 2, 4}), {0, 0, 0}};
  const std::vector<Item> whole = naive_periods(first, 2, root);
  Amended made{{first}, {{}}, {}};
  std::vector<std::int64_t> given(3);
  std::vector<std::vector<std::int64_t>> late(3);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const auto k = static_cast<std::size_t>(whole[i].which);
    const std::int64_t element = whole[i].element + had[k];
    if (i < kCut) {
      made.expected.push_back({whole[i].which, element});
      given[k] += static_cast<std::int64_t>(unit);
    } else {
      for (std::uint64_t j = 0; j < unit; ++j) late[k].push_back(element + static_cast<std::int64_t>(j));
    }
  }
  for (std::size_t k = 0; k < 3; ++k) {
    std::sort(late[k].begin(), late[k].end());
    Deferred runs;
    for (std::size_t i = 0; i < late[k].size(); ++i) {
      if (i > 0 && late[k][i] == late[k][i - 1] + 1) continue;
      runs.numbers.push_back(had[k] + given[k] + static_cast<std::int64_t>(i));
      runs.elements.push_back(late[k][i]);
    }
    if (!late[k].empty()) runs.numbers.push_back(had[k] + given[k] + static_cast<std::int64_t>(late[k].size()));
    made.deferred[0].push_back(runs);
  }
  MixtureSegment second{kCut, 64, unit, false, weights({5, 1, 1}), given};
  for (const Item& item : naive_periods(second, kBehind / 64, root)) {
    const auto k = static_cast<std::size_t>(item.which);
    const auto place = static_cast<std::size_t>(item.element - given[k]);  // among what has not come
    made.expected.push_back({item.which, place < late[k].size() ? late[k][place] : item.element + had[k]});
  }
  second.level = 1;
  made.segments.push_back(second);
  return made;
}

void amended_lines_give_what_was_deferred_before_anything_else() {
  for (const std::uint64_t unit : {1U, 4U}) {
    for (const std::vector<std::int64_t>& had : {std::vector<std::int64_t>{0, 0, 0}, {1000, 20, 4'000'000'000}}) {
      const Amended made = amended_line(had, unit, 77);
      const MixtureLine line(made.segments, made.deferred);
      const std::size_t count = made.expected.size();
      check_equal(count, kCut + kBehind, "positions");
      const auto ask = [&](const std::vector<std::int64_t>& positions) {
        std::vector<std::int32_t> which(positions.size());
        std::vector<std::int64_t> element(positions.size());
        line.at(77, positions, which, element, had);
        std::vector<Item> items;
        for (std::size_t i = 0; i < positions.size(); ++i) items.push_back({which[i], element[i]});
        return items;
      };
      check_equal(ask(count_from(0, count)), made.expected, say("in order, unit ", unit));
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t p = i * 271 % count;
        check_equal(ask({static_cast<std::int64_t>(p)}), {made.expected[p]}, say("position ", p, ", unit ", unit));
      }
      std::vector<Item> sorted = made.expected;
      std::sort(sorted.begin(), sorted.end());
      check(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(), "an item comes twice");
    }
  }
}

// Where a period has deferred elements, a run of it is not one run of elements; behind them it is, as in every other line.
void runs_of_amended_lines_are_those_of_single_positions() {
  const std::vector<std::int64_t> had{0, 0, 0};
  const Amended made = amended_line(had, 1, 5);
  const MixtureLine line(made.segments, made.deferred);
  std::size_t answered = 0;
  for (std::uint64_t first = kCut; first + 64 <= made.expected.size(); first += 64) {
    std::vector<std::uint32_t> places(64);
    std::vector<std::int64_t> elements(3), counts(3);
    if (!line.run(5, static_cast<std::int64_t>(first), places, elements, counts, had)) continue;
    ++answered;
    std::vector<Item> items;
    for (std::size_t k = 0; k < 3; ++k)
      for (std::int64_t i = 0; i < counts[k]; ++i) items.push_back({static_cast<std::int32_t>(k), elements[k] + i});
    for (std::size_t i = 0; i < places.size(); ++i)
      check_equal(items[places[i]], made.expected[static_cast<std::size_t>(first) + i], say("position ", first + i));
  }
  check(answered > 0, "no run behind what was deferred");
  check(answered < kBehind / 64, "runs of deferred elements");
}

void what_is_deferred_must_fit_the_segments() {
  Amended made = amended_line({0, 0, 0}, 1, 9);
  check_throws<std::invalid_argument>([&] { MixtureLine line(made.segments, {}); });
  std::vector<std::vector<Deferred>> few{{made.deferred[0][0], made.deferred[0][1]}};
  check_throws<std::invalid_argument>([&] { MixtureLine line(made.segments, few); });
  std::vector<std::vector<Deferred>> falling = made.deferred;
  falling[0][2].numbers.back() = falling[0][2].numbers.front();
  check_throws<std::invalid_argument>([&] { MixtureLine line(made.segments, falling); });
  std::vector<std::vector<Deferred>> open = made.deferred;
  open[0][2].numbers.pop_back();
  check_throws<std::invalid_argument>([&] { MixtureLine line(made.segments, open); });
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
  amended_lines_give_what_was_deferred_before_anything_else();
  runs_of_amended_lines_are_those_of_single_positions();
  what_is_deferred_must_fit_the_segments();
  return finish();
}
