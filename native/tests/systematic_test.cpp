#include "core/systematic.h"

#include <cstdint>
#include <numeric>

#include "check.h"

using namespace penstock;

namespace {

using Wide = unsigned __int128;

constexpr std::uint64_t kMax = (std::uint64_t{1} << 63) - 1;

struct Selection {
  std::uint64_t n;
  std::uint64_t size;
  std::uint64_t offset;

  std::string name() const { return say("n ", n, " size ", size, " offset ", offset); }

  std::vector<std::int64_t> part(std::uint64_t start, std::size_t count) const {
    std::vector<std::int64_t> positions(count);
    std::iota(positions.begin(), positions.end(), static_cast<std::int64_t>(start));
    std::vector<std::int64_t> out(count);
    systematic(n, size, offset, positions, out);
    return out;
  }
};

// The first place x whose far edge (x + 1) / n, as a fraction of the whole, is not before (p + 1 - offset / n) / size.
std::int64_t naive_place(const Selection& s, std::uint64_t p) {
  std::uint64_t x = 0;
  while ((x + 1) * s.size + s.offset < (p + 1) * s.n) ++x;
  return static_cast<std::int64_t>(x);
}

void check_rising_and_below(const std::vector<std::int64_t>& places, const Selection& s) {
  for (std::size_t i = 0; i < places.size(); ++i) {
    check(places[i] >= 0 && static_cast<std::uint64_t>(places[i]) < s.n, say(s.name(), ": place ", places[i], " is not below n"));
    if (i > 0) check(places[i - 1] < places[i], say(s.name(), ": place ", places[i], " comes after ", places[i - 1]));
  }
}

void small_selections_equal_exact_rational_arithmetic() {
  for (std::uint64_t n = 1; n <= 36; ++n) {
    for (std::uint64_t size = 1; size <= n; ++size) {
      for (std::uint64_t offset = 0; offset < n; ++offset) {
        const Selection s{n, size, offset};
        std::vector<std::int64_t> expected;
        for (std::uint64_t p = 0; p < size; ++p) expected.push_back(naive_place(s, p));
        check_equal(s.part(0, size), expected, s.name());
        check_rising_and_below(expected, s);
      }
    }
  }
}

void over_all_offsets_every_place_is_chosen_equally_often() {
  for (std::uint64_t n = 1; n <= 60; ++n) {
    for (std::uint64_t size = 1; size <= n; ++size) {
      std::vector<std::uint64_t> times(n);
      for (std::uint64_t offset = 0; offset < n; ++offset) {
        for (const std::int64_t place : Selection{n, size, offset}.part(0, size)) ++times[static_cast<std::size_t>(place)];
      }
      check_equal(times, std::vector<std::uint64_t>(n, size), say("n ", n, " size ", size));
    }
  }
}

void a_part_equals_the_slice_of_the_whole() {
  const Selection s{1'000'003, 4001, 77'777};
  const std::vector<std::int64_t> whole = s.part(0, 4001);
  check_rising_and_below(whole, s);
  for (const std::ptrdiff_t start : {0, 1, 999, 3990}) {
    check_equal(s.part(static_cast<std::uint64_t>(start), 11), std::vector(whole.begin() + start, whole.begin() + start + 11));
  }
  check_equal(s.part(4001, 0), {});
}

void choosing_everything_keeps_everything_in_order() {
  std::vector<std::int64_t> all(5000);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  for (const std::uint64_t offset : {0U, 1U, 2500U, 4999U}) check_equal(Selection{5000, 5000, offset}.part(0, 5000), all);
}

// The result x is the least with (x + 1) * size >= n * (p + 1) - offset; both products need 126 bits.
void check_least(const Selection& s, std::uint64_t p, std::int64_t place) {
  const auto x = static_cast<Wide>(place);
  const Wide reach = static_cast<Wide>(s.n) * (p + 1) - s.offset;
  check((x + 1) * s.size >= reach && x * s.size < reach, say(s.name(), ": place ", p, " is not the least, found ", place));
}

void extreme_lengths_do_not_overflow() {
  for (const std::uint64_t n : {kMax, kMax - 1, (std::uint64_t{1} << 62) + 1, std::uint64_t{1'000'000'000'000}}) {
    for (const std::uint64_t size : {n, n - 1, n / 2 + 1, n / 2, n / 3, std::uint64_t{1'000'003}, std::uint64_t{20}}) {
      for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{1}, n / 2, n - 1}) {
        const Selection s{n, size, offset};
        for (const std::uint64_t start : {std::uint64_t{0}, (size - 20) / 2, size - 20}) {
          const std::vector<std::int64_t> places = s.part(start, 20);
          check_rising_and_below(places, s);
          for (std::size_t i = 0; i < places.size(); ++i) check_least(s, start + i, places[i]);
        }
      }
    }
    for (const std::uint64_t offset : {std::uint64_t{0}, n - 1}) {
      check_equal(Selection{n, 1, offset}.part(0, 1), {static_cast<std::int64_t>(n - 1 - offset)}, "a selection of one");
    }
  }
}

}  // namespace

int main() {
  small_selections_equal_exact_rational_arithmetic();
  over_all_offsets_every_place_is_chosen_equally_often();
  a_part_equals_the_slice_of_the_whole();
  choosing_everything_keeps_everything_in_order();
  extreme_lengths_do_not_overflow();
  return finish();
}
