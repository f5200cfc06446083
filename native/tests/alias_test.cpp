#include "core/alias.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "core/random.h"
#include "core/seed.h"

using namespace penstock;

namespace {

constexpr std::uint64_t kUnit = std::uint64_t{1} << 32;

// What each id has of the table, in units of 2^-32 columns.
std::vector<std::uint64_t> shares(const AliasTable& table) {
  std::vector<std::uint64_t> found(table.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    found[i] += table.columns()[i].bound;
    found[table.columns()[i].other] += kUnit - table.columns()[i].bound;
  }
  return found;
}

std::vector<std::vector<double>> many_weights() {
  std::vector<std::vector<double>> found = {{1}, {5e-324}, {0, 0, 3}, {1, 1, 1, 1}, {1, 2, 3, 4, 5}, {1e300, 1e-300, 0, 1e299}};
  std::vector<double> steep(1000), even(777, 0.1), half(500);
  for (std::size_t i = 0; i < steep.size(); ++i) steep[i] = 1 / static_cast<double>(i + 1);
  for (std::size_t i = 0; i < half.size(); i += 2) half[i] = static_cast<double>(i % 7);
  found.insert(found.end(), {steep, even, half});
  even.push_back(0.1000001);  // many columns that lack next to nothing, and one id that fills them all up
  found.push_back(even);
  return found;
}

void shares_are_in_proportion_to_the_weights_up_to_two_units() {
  for (const std::vector<double>& weights : many_weights()) {
    const std::vector<std::uint64_t> found = shares(AliasTable(weights));
    long double sum = 0;
    for (const double weight : weights) sum += weight;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const long double exact = weights[i] / sum * static_cast<long double>(weights.size()) * kUnit;
      const long double error = std::fabs(static_cast<long double>(found[i]) - exact);
      check(error <= 2 + exact * 0x1p-31L, say("id ", i, " of ", weights.size(), ": ", found[i], " units"));
      check((found[i] > 0) == (weights[i] > 0), say("id ", i, " of weight ", weights[i], " has ", found[i], " units"));
      total += found[i];
    }
    check_equal(total, weights.size() * kUnit, "all columns are full");
  }
}

void a_draw_is_a_column_and_a_word() {
  const std::vector<double> weights = {3, 0, 1, 9, 2, 0.5};
  const AliasTable table(weights);
  std::vector<std::int64_t> found(2000), columns(2000), expected;
  table.run(77, 5, 3, found);
  random_run(weights.size(), 77, 5, 3, columns);
  for (std::uint64_t i = 0; i < found.size(); ++i) {
    const AliasColumn column = table.columns()[static_cast<std::size_t>(columns[i])];
    const std::uint64_t word = absorb(absorb(77, 5 + 3 * i), 0);
    expected.push_back((word >> 32) < column.bound ? columns[i] : static_cast<std::int64_t>(column.other));
  }
  check_equal(found, expected, "run");
  std::vector<std::int64_t> positions;
  for (std::int64_t i = 0; i < 2000; ++i) positions.push_back(5 + 3 * i);
  table.at(77, positions, found);
  check_equal(found, expected, "at");
}

void draws_come_as_often_as_their_weights_say() {
  const std::vector<double> weights = {1, 2, 0, 3, 4};
  std::vector<std::int64_t> found(100'000);
  AliasTable(weights).run(5, 0, 1, found);
  std::vector<double> times(weights.size());
  for (const std::int64_t id : found) ++times[static_cast<std::size_t>(id)];
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double expected = weights[i] * 10'000;
    check(std::fabs(times[i] - expected) <= 4 * std::sqrt(expected), say("id ", i, " came ", times[i], " times"));
  }
}

void only_ids_with_a_weight_are_marked() {
  for (const std::vector<double>& weights : many_weights()) {
    std::vector<std::uint8_t> found(weights.size(), 7);
    AliasTable(weights).mark_drawn(found);
    for (std::size_t i = 0; i < weights.size(); ++i) check_equal(found[i] == 1, weights[i] > 0, say("id ", i));
  }
}

void a_table_of_its_columns_is_the_same() {
  const AliasTable table(std::vector<double>{1, 5, 2});
  const AliasTable again(table.columns());
  std::vector<std::int64_t> one(100), other(100);
  table.run(3, 0, 1, one);
  again.run(3, 0, 1, other);
  check_equal(one, other);
}

void bad_weights_and_columns_are_refused() {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  for (const std::vector<double>& weights : {std::vector<double>{}, {0, 0}, {1, -1}, {1, nan}, {nan}, {inf, 1}, {1, -inf}}) {
    check_throws<std::invalid_argument>([&] { AliasTable{std::span<const double>(weights)}; });
  }
  const std::vector<AliasColumn> outside = {{0, 2}, {0, 0}};
  check_throws<std::invalid_argument>([&] { AliasTable{std::span<const AliasColumn>(outside)}; });
}

void strings_are_hashed_by_length_and_words() {
  const std::vector<std::byte> text = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}, std::byte{5},
                                       std::byte{6}, std::byte{7}, std::byte{8}, std::byte{9}};
  check_equal(absorb_bytes(42, {}), absorb(42, 0));
  check_equal(absorb_bytes(42, std::span(text).first(8)), absorb(absorb(42, 8), 0x0807060504030201));
  check_equal(absorb_bytes(42, text), absorb(absorb(absorb(42, 9), 0x0807060504030201), 9));
}

}  // namespace

int main() {
  shares_are_in_proportion_to_the_weights_up_to_two_units();
  a_draw_is_a_column_and_a_word();
  draws_come_as_often_as_their_weights_say();
  only_ids_with_a_weight_are_marked();
  a_table_of_its_columns_is_the_same();
  bad_weights_and_columns_are_refused();
  strings_are_hashed_by_length_and_words();
  return finish();
}
