#include "core/permutation.h"

#include <cstdint>
#include <numeric>

#include "check.h"
#include "core/seed.h"

using namespace penstock;

namespace {

using Ids = std::vector<std::int64_t>;
using Wide = unsigned __int128;

constexpr std::uint64_t kTwo62 = std::uint64_t{1} << 62;
constexpr std::uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;

// What follows down to `reference` repeats the definitions of seed.h, feistel.h and permutation.h in the most literal way.

std::uint64_t splitmix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

std::uint64_t mix_in(std::uint64_t hash, std::uint64_t word) { return splitmix((hash ^ word) + kGoldenRatio); }

struct Grid {
  std::uint64_t a;
  std::uint64_t b;
};

Grid grid(std::uint64_t n) {
  std::uint64_t low = 0;
  std::uint64_t high = std::uint64_t{1} << 32;  // low^2 < n <= high^2
  while (high - low > 1) {
    const std::uint64_t middle = (low + high) / 2;
    (static_cast<Wide>(middle) * middle < n ? low : high) = middle;
  }
  return {high, static_cast<std::uint64_t>((static_cast<Wide>(n) + high - 1) / high)};
}

std::uint64_t round_value(std::uint64_t half, std::uint64_t round_key, std::uint64_t modulus) {
  constexpr std::uint64_t word = 0xFFFFFFFF;
  std::uint64_t z = ((half ^ (round_key & word)) * 0x9E3779B1) & word;
  z ^= z >> 16;
  z = ((z ^ (round_key >> 32)) * 0x85EBCA6B) & word;
  return static_cast<std::uint64_t>(static_cast<Wide>(z) * modulus / (static_cast<Wide>(1) << 32));
}

struct ReferenceNetwork {
  std::uint64_t n;
  std::uint64_t key;
  Grid g = grid(n);

  std::uint64_t operator()(std::uint64_t p) const {
    do {
      std::uint64_t left = p / g.b;
      std::uint64_t right = p % g.b;
      for (std::uint64_t round = 0; round < 8; ++round) {
        const std::uint64_t round_key = mix_in(key, round);
        if (round % 2 == 0) right = (right + round_value(left, round_key, g.b)) % g.b;
        if (round % 2 == 1) left = (left + round_value(right, round_key, g.a)) % g.a;
      }
      p = left * g.b + right;
    } while (p >= n);
    return p;
  }
};

struct ReferenceTable {
  Ids ids;
  int redraws = 0;

  ReferenceTable(std::uint64_t n, std::uint64_t key) : ids(n) {
    std::iota(ids.begin(), ids.end(), std::int64_t{0});
    for (std::uint64_t i = n; i-- > 1;) std::swap(ids[i], ids[below(i + 1, key, i)]);
  }

  std::uint64_t below(std::uint64_t bound, std::uint64_t key, std::uint64_t i) {
    constexpr std::uint64_t two32 = std::uint64_t{1} << 32;
    const std::uint64_t pair = splitmix(key + (i / 2 + 1) * kGoldenRatio);
    std::uint64_t word = i % 2 == 0 ? pair % two32 : pair / two32;
    for (std::uint64_t attempt = 1; word * bound % two32 < two32 % bound; ++attempt, ++redraws) {
      word = mix_in(mix_in(key, i), attempt) / two32;
    }
    return word * bound / two32;
  }
};

Ids reference(std::uint64_t n, std::uint64_t key, const Ids& positions) {
  const ReferenceNetwork network{n, key};
  Ids ids;
  for (const std::int64_t p : positions) ids.push_back(static_cast<std::int64_t>(network(static_cast<std::uint64_t>(p))));
  return ids;
}

Ids count_from(std::uint64_t start, std::size_t count, std::uint64_t step = 1) {
  Ids positions(count);
  for (std::size_t i = 0; i < count; ++i) positions[i] = static_cast<std::int64_t>(start + i * step);
  return positions;
}

Ids run(const Permutation& permutation, std::uint64_t start, std::size_t count, std::uint64_t step = 1) {
  Ids out(count, -1);
  permutation.run(start, step, out);
  return out;
}

Ids forward(const Permutation& permutation, const Ids& positions) {
  Ids out(positions.size(), -1);
  permutation.forward(positions, out);
  return out;
}

Ids inverse(const Permutation& permutation, const Ids& ids) {
  Ids out(ids.size(), -1);
  permutation.inverse(ids, out);
  return out;
}

bool is_bijection(const Ids& ids) {
  std::vector<bool> seen(ids.size());
  for (const std::int64_t id : ids) {
    if (id < 0 || static_cast<std::size_t>(id) >= ids.size() || seen[static_cast<std::size_t>(id)]) return false;
    seen[static_cast<std::size_t>(id)] = true;
  }
  return true;
}

void check_singles(const Permutation& permutation, const Ids& positions, const Ids& ids, const std::string& name) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    check_equal(static_cast<std::int64_t>(permutation.forward(static_cast<std::uint64_t>(positions[i]))), ids[i], name);
    check_equal(static_cast<std::int64_t>(permutation.inverse(static_cast<std::uint64_t>(ids[i]))), positions[i], name);
  }
}

// Batches in both directions, also written over their own input.
void check_batches(const Permutation& permutation, const Ids& positions, const Ids& ids, const std::string& name) {
  check_equal(forward(permutation, positions), ids, say("forward, ", name));
  check_equal(inverse(permutation, ids), positions, say("inverse, ", name));
  Ids same = positions;
  permutation.forward(same, same);
  check_equal(same, ids, say("forward in place, ", name));
  permutation.inverse(same, same);
  check_equal(same, positions, say("inverse in place, ", name));
}

void splitmix_has_its_known_values() {
  check_equal(absorb(0, 0), 0xE220A8397B1DCDAF);
  check_equal(absorb(0, 1), 0x910A2DEC89025CC1);
  check_equal(absorb(0, 42), 0xBDD732262FEB6E95);
  check_equal(absorb(42, 7), 0xF7E9F3F88CC04AD6);
  check_equal(derive_key(1, 2, 3, 4), mix_in(mix_in(mix_in(mix_in(0, 1), 2), 3), 4));
}

void small_lengths_are_bijections_equal_to_fisher_yates() {
  for (std::uint64_t n = 0; n <= 2100; ++n) {
    for (const std::uint64_t key : {std::uint64_t{0}, mix_in(3, n)}) {
      const std::string name = say("n ", n, " key ", key);
      const Permutation permutation(n, key);
      const Ids positions = count_from(0, n);
      const Ids ids = run(permutation, 0, n);
      check_equal(permutation.size(), n);
      check(permutation.has_table(), name);
      check(is_bijection(ids), say("not a bijection, ", name));
      check_equal(ids, ReferenceTable(n, key).ids, name);
      check_batches(permutation, positions, ids, name);
      if (n <= 150) check_singles(permutation, positions, ids, name);  // a single inverse searches the table
    }
  }
}

void the_longest_tables_equal_fisher_yates_with_redraws() {
  int redraws = 0;
  for (const std::uint64_t n : {65'535U, 65'536U}) {
    for (std::uint64_t key = 1; key <= 8; ++key) {
      const ReferenceTable expected(n, key);
      redraws += expected.redraws;
      const Permutation permutation(n, key);
      const Ids ids = run(permutation, 0, n);
      check(permutation.has_table() && is_bijection(ids), say("n ", n, " key ", key));
      check_equal(ids, expected.ids, say("n ", n, " key ", key));
      if (key == 1) check_batches(permutation, count_from(0, n), ids, say("n ", n));
      if (key == 1) check_singles(permutation, {0, 65'534}, {ids[0], ids[65'534]}, say("n ", n));
    }
  }
  check(redraws > 0, "expected a rejected draw among the tables tested, found none");
}

void networks_are_bijections_equal_to_the_reference_at_every_level() {
  for (const std::uint64_t n : {65'537U, (1U << 17U) - 1U, 1U << 17U, (1U << 17U) + 1U, 1'000'000U, (1U << 20U) + 1U}) {
    const std::uint64_t key = mix_in(1, n);
    const Ids positions = count_from(0, n);
    const Ids expected = reference(n, key, positions);
    check(is_bijection(expected), say("the reference is not a bijection, n ", n));
    for (const Simd level : available_simd()) {
      const std::string name = say("n ", n, " level ", static_cast<int>(level));
      const Permutation permutation(n, key, level);
      check(!permutation.has_table(), name);
      check_equal(run(permutation, 0, n), expected, name);
      check_batches(permutation, positions, expected, name);
    }
  }
}

// Lengths: the smallest network, those around powers of two and squares (grids of all proportions), the limit of the vector
// kernels, the longest of all.
std::vector<std::uint64_t> network_lengths() {
  std::vector<std::uint64_t> lengths{65'537,     66'049, 66'050,     1'000'000,      1'000'000'000'000,
                                     kTwo62 - 1, kTwo62, kTwo62 + 1, kMaxLength - 1, kMaxLength};
  for (int power = 31; power < 62; power += 3) {
    lengths.insert(lengths.end(), {(std::uint64_t{1} << power) - 1, std::uint64_t{1} << power, (std::uint64_t{1} << power) + 1});
  }
  lengths.push_back((kTwo62 >> 1) + 12'345);
  lengths.push_back(std::uint64_t{2'147'483'647} * 2'147'483'647);      // a = b = 2^31 - 1
  lengths.push_back(std::uint64_t{2'147'483'647} * 2'147'483'647 + 1);  // a = 2^31, b one less
  return lengths;
}

// Positions at both ends of the domain, at row ends, and all over it.
Ids interesting_positions(std::uint64_t n) {
  Ids positions = count_from(0, 300);
  const Ids end = count_from(n - 300, 300);
  const Ids rows = count_from(0, 250, grid(n).b);
  const Ids row_ends = count_from(grid(n).b - 1, 250, grid(n).b);
  const Ids spread = count_from(n / 7, 299, n / 400);
  for (const Ids& more : {end, rows, row_ends, spread}) positions.insert(positions.end(), more.begin(), more.end());
  return positions;
}

void both_directions_equal_the_reference_up_to_the_longest_length() {
  for (const std::uint64_t n : network_lengths()) {
    const std::uint64_t key = mix_in(2, n);
    const Ids positions = interesting_positions(n);
    const Ids ids = reference(n, key, positions);
    for (const std::int64_t id : ids) check(static_cast<std::uint64_t>(id) < n, say("n ", n, " id ", id));
    for (const Simd level : available_simd()) {
      const std::string name = say("n ", n, " level ", static_cast<int>(level));
      const Permutation permutation(n, key, level);
      check_singles(permutation, positions, ids, name);
      check_batches(permutation, positions, ids, name);
    }
  }
}

const std::vector<std::size_t> kCounts{0, 1, 2, 7, 8, 9, 63, 64, 65, 127, 128, 129, 200, 255, 256, 257, 300, 513, 600};

void runs_near_row_ends_and_at_the_end_equal_the_reference() {
  for (const std::uint64_t n : network_lengths()) {
    const std::uint64_t key = mix_in(5, n);
    const Grid g = grid(n);
    for (const std::uint64_t anchor : {g.b, g.b * (g.a / 2), g.b * (g.a - 2), n}) {
      // What is read is between anchor - 600 and anchor + 600.
      const std::uint64_t first = anchor < 600 ? 0 : anchor - 600;
      const Ids expected = reference(n, key, count_from(first, std::min<std::uint64_t>(n - first, 1200)));
      for (const Simd level : available_simd()) {
        const Permutation permutation(n, key, level);
        for (std::size_t i = 0; i < kCounts.size(); ++i) {
          // Ends at the very end of the row or the domain, or a few places to either side of it.
          for (const std::size_t end : {std::min<std::size_t>(600, anchor), std::min<std::size_t>(601 + i, expected.size())}) {
            const std::size_t count = std::min(kCounts[i], end);
            const auto from = expected.begin() + static_cast<std::ptrdiff_t>(end - count);
            check_equal(run(permutation, first + end - count, count), Ids(from, from + static_cast<std::ptrdiff_t>(count)),
                        say("n ", n, " anchor ", anchor, " count ", count, " level ", static_cast<int>(level)));
          }
        }
      }
    }
  }
}

void every_start_around_a_row_end_equals_the_reference() {
  for (const std::uint64_t n : {std::uint64_t{65'537}, std::uint64_t{1'000'000}, kTwo62 - 1, kTwo62}) {
    const std::uint64_t b = grid(n).b;
    const Ids expected = reference(n, 11, count_from(3 * b - 150, 500));
    for (const Simd level : available_simd()) {
      const Permutation permutation(n, 11, level);
      for (std::size_t start = 0; start < 200; ++start) {
        const auto from = expected.begin() + static_cast<std::ptrdiff_t>(start);
        check_equal(run(permutation, 3 * b - 150 + start, 300), Ids(from, from + 300), say("n ", n, " start ", start));
      }
    }
  }
}

void strided_runs_equal_the_reference() {
  for (const std::uint64_t n : network_lengths()) {
    const std::uint64_t key = mix_in(6, n);
    const std::uint64_t b = grid(n).b;
    for (const std::uint64_t step : {std::uint64_t{2}, std::uint64_t{3}, std::uint64_t{64}, b - 1, b, b + 1, n / 600}) {
      const std::uint64_t most = std::min<std::uint64_t>(600, (n - 1) / step + 1);
      const std::uint64_t first = n - 1 - (most - 1) * step;  // the last position of the run is the last of the domain
      const Ids expected = reference(n, key, count_from(first, most, step));
      for (const Simd level : available_simd()) {
        const Permutation permutation(n, key, level);
        for (const std::size_t count : kCounts) {
          if (count > most) continue;
          const Ids last(expected.end() - static_cast<std::ptrdiff_t>(count), expected.end());
          check_equal(run(permutation, first + (most - count) * step, count, step), last,
                      say("n ", n, " step ", step, " count ", count, " level ", static_cast<int>(level)));
        }
      }
    }
  }
}

void strided_runs_of_a_table_equal_a_slice() {
  const Permutation permutation(1000, 4);
  const Ids all = run(permutation, 0, 1000);
  for (std::uint64_t step = 1; step <= 13; ++step) {
    Ids expected;
    for (std::size_t p = 5; p < 1000; p += step) expected.push_back(all[p]);
    check_equal(run(permutation, 5, expected.size(), step), expected, say("step ", step));
  }
}

void different_keys_give_different_orders() {
  for (const std::uint64_t n : {std::uint64_t{1000}, std::uint64_t{100'000}, kMaxLength}) {
    check(run(Permutation(n, 1), 0, 500) != run(Permutation(n, 2), 0, 500), say("keys 1 and 2 agree, n ", n));
  }
}

}  // namespace

int main() {
  splitmix_has_its_known_values();
  small_lengths_are_bijections_equal_to_fisher_yates();
  the_longest_tables_equal_fisher_yates_with_redraws();
  networks_are_bijections_equal_to_the_reference_at_every_level();
  both_directions_equal_the_reference_up_to_the_longest_length();
  runs_near_row_ends_and_at_the_end_equal_the_reference();
  every_start_around_a_row_end_equals_the_reference();
  strided_runs_equal_the_reference();
  strided_runs_of_a_table_equal_a_slice();
  different_keys_give_different_orders();
  return finish();
}
