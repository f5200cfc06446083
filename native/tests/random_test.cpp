#include "core/random.h"

#include <cstdint>

#include "check.h"
#include "core/seed.h"

using namespace penstock;

namespace {

using Wide = unsigned __int128;

constexpr std::uint64_t kMax = (std::uint64_t{1} << 63) - 1;
// Just above 2^64 / 3: a third of all words are rejected, so second and third attempts are common.
constexpr std::uint64_t kOftenRejected = 6'148'914'691'236'517'206;

std::uint64_t splitmix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

struct Draw {
  std::int64_t value;
  int attempts;
};

// Lemire's method without his shortcut: words whose product falls in the uneven part of the range are drawn again.
Draw naive_draw(std::uint64_t n, std::uint64_t key, std::uint64_t position) {
  constexpr std::uint64_t golden = 0x9E3779B97F4A7C15;
  const auto uneven = static_cast<std::uint64_t>((static_cast<Wide>(1) << 64) % n);
  std::uint64_t word = splitmix(key + (position + 1) * golden);
  for (int attempts = 1;; ++attempts) {
    const Wide product = static_cast<Wide>(word) * n;
    if (static_cast<std::uint64_t>(product) >= uneven) return {static_cast<std::int64_t>(product >> 64), attempts};
    word = splitmix((splitmix((key ^ position) + golden) ^ static_cast<std::uint64_t>(attempts)) + golden);
  }
}

std::vector<std::int64_t> run(std::uint64_t n, std::uint64_t key, std::uint64_t start, std::uint64_t step, std::size_t count) {
  std::vector<std::int64_t> out(count);
  random_run(n, key, start, step, out);
  return out;
}

std::vector<std::int64_t> at(std::uint64_t n, std::uint64_t key, const std::vector<std::int64_t>& positions) {
  std::vector<std::int64_t> out(positions.size());
  random_at(n, key, positions, out);
  return out;
}

void draws_equal_the_naive_method_and_stay_below_n() {
  for (const std::uint64_t n : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{3}, std::uint64_t{1000}, std::uint64_t{1} << 32,
                                (std::uint64_t{1} << 62) + 1, kOftenRejected, kMax - 1, kMax}) {
    for (const std::uint64_t key : {std::uint64_t{0}, std::uint64_t{42}, ~std::uint64_t{0}}) {
      for (const std::uint64_t start : {std::uint64_t{0}, std::uint64_t{1} << 40, kMax - 3000}) {
        const std::vector<std::int64_t> found = run(n, key, start, 1, 3000);
        std::vector<std::int64_t> expected;
        for (std::uint64_t i = 0; i < found.size(); ++i) expected.push_back(naive_draw(n, key, start + i).value);
        check_equal(found, expected, say("n ", n, " key ", key, " start ", start));
        for (const std::int64_t id : found) check(id >= 0 && static_cast<std::uint64_t>(id) < n, say("id ", id, " below ", n));
      }
    }
  }
}

void repeated_attempts_are_among_the_draws_tested() {
  int most = 0;
  for (std::uint64_t i = 0; i < 3000; ++i) most = std::max(most, naive_draw(kOftenRejected, 42, i).attempts);
  check(most >= 4, say("expected at least 4 attempts somewhere, found ", most));
}

void a_strided_run_equals_single_positions() {
  for (const std::uint64_t n : {std::uint64_t{7}, kOftenRejected}) {
    for (const std::uint64_t step : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{13}, std::uint64_t{1} << 50}) {
      std::vector<std::int64_t> positions;
      for (std::uint64_t i = 0; i < 500; ++i) positions.push_back(static_cast<std::int64_t>(5 + i * step));
      check_equal(run(n, 9, 5, step, 500), at(n, 9, positions), say("n ", n, " step ", step));
    }
  }
  check_equal(run(10, 1, 0, 1, 0), {});
  check_equal(at(10, 1, {}), {});
}

void one_choice_is_always_zero() { check_equal(run(1, 77, 123, 1, 1000), std::vector<std::int64_t>(1000, 0)); }

void every_value_comes_about_equally_often() {
  std::vector<int> times(10);
  for (const std::int64_t id : run(times.size(), 5, 0, 1, 100'000)) ++times[static_cast<std::size_t>(id)];
  for (const int count : times) check(count > 9'600 && count < 10'400, say("expected 10000 +- 4 sigma, found ", count));
}

}  // namespace

int main() {
  draws_equal_the_naive_method_and_stay_below_n();
  repeated_attempts_are_among_the_draws_tested();
  a_strided_run_equals_single_positions();
  one_choice_is_always_zero();
  every_value_comes_about_equally_often();
  return finish();
}
