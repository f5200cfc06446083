// The sixteen-lane kernel against the plain one, index by index. Not one of the ctest programs: it fails on a processor without
// avx512f instead of passing with nothing compared. tools/avx512-in-bochs runs it on an emulated one.
#include <cstdint>
#include <iostream>

#include "check.h"
#include "core/feistel.h"
#include "core/seed.h"

using namespace penstock;

namespace {

constexpr std::uint64_t kTwo31 = std::uint64_t{1} << 31;

// Below one lane, around one and two vectors of 16, around one, two and four tiles of 128.
constexpr std::size_t kCounts[] = {0, 1, 2, 15, 16, 17, 31, 33, 127, 128, 129, 255, 256, 257, 300, 511, 513, 600};

struct Halves {
  std::vector<std::uint32_t> left;
  std::vector<std::uint32_t> right;
};

Halves split(const Feistel& f, const std::vector<std::uint64_t>& positions) {
  Halves halves;
  for (const std::uint64_t p : positions) {
    halves.left.push_back(static_cast<std::uint32_t>(p / f.b));
    halves.right.push_back(static_cast<std::uint32_t>(p % f.b));
  }
  return halves;
}

class Comparison {
 public:
  void run(const Feistel& f, std::uint64_t start, std::size_t count) {
    compare(say("run, n ", f.n, " start ", start, " count ", count), count,
            [&](const FeistelKernel& kernel, std::int64_t* out) { kernel.run(f, start, count, out); });
  }

  // `count` halves from the second one on, so that no load is aligned by luck.
  void both_directions(const Feistel& f, const Halves& halves, std::size_t count) {
    const std::uint32_t* left = halves.left.data() + 1;
    const std::uint32_t* right = halves.right.data() + 1;
    compare(say("forward, n ", f.n, " count ", count), count,
            [&](const FeistelKernel& kernel, std::int64_t* out) { kernel.forward(f, left, right, count, out); });
    compare(say("inverse, n ", f.n, " count ", count), count,
            [&](const FeistelKernel& kernel, std::int64_t* out) { kernel.inverse(f, left, right, count, out); });
  }

  int report() const {
    std::cout << "avx512: " << num_compared_ << " comparisons, " << num_differ_ << " differ" << std::endl;
    check(num_compared_ > 0, "expected comparisons, found none");
    return finish();
  }

 private:
  // A place before and a place after the results catch a store too many, and leave the results unaligned. (A message counts the
  // place before too.)
  template <class Fill>
  void compare(const std::string& name, std::size_t count, Fill fill) {
    std::vector<std::int64_t> expected(count + 2, -1);
    std::vector<std::int64_t> found(count + 2, -1);
    fill(feistel_kernel(Simd::plain), expected.data() + 1);
    fill(feistel_kernel(Simd::avx512), found.data() + 1);
    for (std::size_t i = 0; i < found.size(); ++i) num_differ_ += found[i] != expected[i];
    num_compared_ += count;
    check_equal(found, expected, name);
  }

  std::uint64_t num_compared_ = 0;
  std::uint64_t num_differ_ = 0;
};

// All of a small domain, results that walk the cycle among them; once more with every position in another lane.
void compare_everything(Comparison& comparison, const Feistel& f) {
  std::vector<std::uint64_t> positions{0};  // skipped by both_directions
  for (std::uint64_t p = 0; p < f.n; ++p) positions.push_back(p);
  comparison.run(f, 0, f.n);
  comparison.run(f, 1, f.n - 1);
  comparison.both_directions(f, split(f, positions), f.n);
}

// Runs that begin before and at the end of a row, among the first rows, the middle ones and the last; then the ends of the
// domain.
void compare_runs(Comparison& comparison, const Feistel& f) {
  for (const std::uint64_t row_end : {f.b, f.b * 3, f.b * (f.a / 2), f.b * (f.a - 3)}) {
    for (const std::uint64_t before : {0U, 1U, 16U, 77U, 128U, 130U}) {
      const std::uint64_t start = row_end - before;
      for (const std::size_t count : kCounts) comparison.run(f, start, std::min(count, f.n - start));
    }
  }
  for (const std::size_t count : kCounts) comparison.run(f, f.n - count, count);
  for (const std::size_t count : kCounts) comparison.run(f, 0, count);
}

// Positions all over the domain, its two ends first.
void compare_scattered(Comparison& comparison, const Feistel& f, std::uint64_t key) {
  std::vector<std::uint64_t> positions{0, f.n - 1, 0, f.b - 1, f.b, f.n - 2};
  while (positions.size() <= 20'000) positions.push_back(absorb(key, positions.size()) % f.n);
  const Halves halves = split(f, positions);
  for (const std::size_t count : kCounts) comparison.both_directions(f, halves, count);
  comparison.both_directions(f, halves, 20'000);
}

}  // namespace

int main() {
  if (available_simd().back() != Simd::avx512) {
    std::cerr << "avx512: expected a processor with avx512f, found one without; see tools/avx512-in-bochs\n";
    return 1;
  }
  Comparison comparison;
  // The smallest network, grids of several proportions, halves of 31 bits, the limit of the vector kernels.
  for (const std::uint64_t n :
       {std::uint64_t{65'537}, std::uint64_t{1'000'000}, std::uint64_t{(1 << 20) + 1}, std::uint64_t{1'000'000'000'000},
        (kTwo31 - 1) * (kTwo31 - 1), (kTwo31 - 1) * (kTwo31 - 1) + 1, kTwo31 * kTwo31 - 1, kTwo31 * kTwo31}) {
    for (std::uint64_t key = 1; key <= 2; ++key) {
      const Feistel f = Feistel::make(n, absorb(key, n));
      compare_runs(comparison, f);
      compare_scattered(comparison, f, key);
      if (key == 1 && n < 2'000'000) compare_everything(comparison, f);
    }
  }
  return comparison.report();
}
