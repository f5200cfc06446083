// Balanced dealing: the samples of a batch are dealt to slots of given sizes so that no slot costs much more than another.
//
// Longest processing time first, with a limit on counts: samples in falling order of cost (of equal ones, the earlier first),
// each to the slot with the smallest load so far that still has room (of equal loads, the first slot). With several micro-batches
// samples are dealt to these first, because ranks wait for each other at the end of every micro-batch, and then within each to
// the ranks; of equal loads the rank is first that has cost less in the micro-batches before (of those, the first).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

inline constexpr std::uint64_t kMaxCost = std::uint64_t{1} << 40;
inline constexpr std::size_t kMaxDealt = std::size_t{1} << 23;  // so that no sum of costs overflows

// room[rank * micro_batches + micro] is the number of samples of a slot; together as many as there are costs. `out` gets the
// samples of slot 0, then those of slot 1, ...; those of a slot in rising order. Throws std::invalid_argument if room does not
// fit, a cost exceeds kMaxCost or there are more than kMaxDealt samples.
void deal(std::span<const std::uint64_t> costs, std::span<const std::int64_t> room, std::size_t micro_batches,
          std::span<std::int64_t> out);

// The cost of each sample of packed documents: the sum of n * (linear + quadratic * n) over its pieces of n tokens. Sample i has
// the runs [first[i], first[i + 1]); neighbouring runs of one document are a piece, those of an owner below 0 are padding and
// cost nothing. The result saturates at 2^63. Throws std::invalid_argument if the runs are not those of the samples.
void piece_costs(std::span<const std::int64_t> first, std::span<const std::int64_t> owner, std::span<const std::int64_t> count,
                 std::uint64_t linear, std::uint64_t quadratic, std::span<std::uint64_t> out);

}  // namespace penstock
