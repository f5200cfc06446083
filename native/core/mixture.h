// Mixture: position -> (data set, offset in that data set's own line), in closed form.
//
// The line of positions is a list of segments, each cut into periods. In a period every data set owns one contiguous range of
// slots; a permutation of the period assigns positions to slots. `edges` holds, for each segment, one number per data set and one
// more:
//   share segment   edges are cumulative weights in units of 2^-63; with  S(k, t) = floor(t * edges[k] / 2^63),  data set k has
//                   given S(k+1, t) - S(k, t) items after the first t positions of the segment, for every t at a period's end
//                   so each share times the period must be at least one slot, or 0
//   counted segment a single period; edges are the cumulative counts themselves
// A segment may begin within a period of the one before, which is then cut off there. What that period did not give comes
// later: the line counts elements by the numbers in which they are given, and `Deferred` says which element has which number.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/permutation.h"

namespace penstock {

// The elements of one data set that have other numbers than their own: runs of them. All numbers behind the runs are their own
// elements. Empty if there are none.
struct Deferred {
  std::vector<std::int64_t> numbers;   // the first of each run, rising, and the one behind the last run
  std::vector<std::int64_t> elements;  // the first of each run; one fewer

  bool has(std::int64_t number) const { return !numbers.empty() && number < numbers.back(); }
  std::int64_t element_of(std::int64_t number) const;  // of a number that is not below the first run's
};

struct MixtureSegment {
  std::uint64_t start;   // first position
  std::uint64_t period;  // positions per period
  std::uint64_t unit;    // elements per item
  bool counted;
  std::vector<std::uint64_t> edges;  // one more than there are data sets
  std::vector<std::int64_t> before;  // elements each data set has given before this segment
  std::size_t level = 0;             // of the lists of Deferred that hold in it; 0: none
};

// Immutable, so safe to use from several threads.
class MixtureLine {
 public:
  // deferred[level - 1] is for segments of that level, with one entry per data set. Numbers in it are those after `before` of
  // at() was added. Throws std::invalid_argument where it does not fit the segments.
  explicit MixtureLine(std::vector<MixtureSegment> segments, std::vector<std::vector<Deferred>> deferred = {});

  // The data set and the first element of the item at each position. Positions in rising order cost least: the tables of a period
  // are kept until another period is asked for. A period's key is absorb(root, its first position).
  // before[k] is added to the elements of data set k; it is empty, or has a number for each.
  // Throws std::invalid_argument where the edges of a segment do not fill a period.
  void at(std::uint64_t root, std::span<const std::int64_t> positions, std::span<std::int32_t> which,
          std::span<std::int64_t> element, std::span<const std::int64_t> before = {}) const;

  // All elements of the periods of positions first, first + 1, ...: data set k gives `counts[k]` from `elements[k]` on, and those
  // of all data sets, one after the other, are numbered from 0 on; places[i] is the number of that at position first + i. Costs
  // less than at(). False if the elements of a data set are not one run, or if a period has more positions than places has.
  bool run(std::uint64_t root, std::int64_t first, std::span<std::uint32_t> places, std::span<std::int64_t> elements,
           std::span<std::int64_t> counts, std::span<const std::int64_t> before = {}) const;

  // Elements that each data set has given before the period of a position.
  std::vector<std::int64_t> given_before(std::uint64_t position) const;

 private:
  const Deferred* deferred_of(const MixtureSegment& segment) const;

  std::vector<MixtureSegment> segments_;
  std::vector<std::vector<Deferred>> deferred_;
};

}  // namespace penstock
