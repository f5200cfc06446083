// Records of several streams as rows of leaves: one table for selections, concatenations and mixtures, however they are nested.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// Records of a stream from the end of the run before up to `end`: record i is row base + i * step of a leaf.
struct RowRun {
  std::int64_t end;
  std::int64_t base;
  std::int64_t step;
  std::int32_t leaf;
};

// Immutable; safe to use from several threads.
class RowLookup {
 public:
  // The runs of each stream, in the order of its records.
  explicit RowLookup(const std::vector<std::vector<RowRun>>& streams);

  // The leaf and row of each record; `streams` has the stream of each, or is empty: all are of the first. Throws
  // std::out_of_range for a record or stream that does not exist.
  void find(std::span<const std::int64_t> ids, std::span<const std::int32_t> streams, std::int32_t* which,
            std::int64_t* rows) const;

 private:
  // The runs of a stream: those of records [b << shift, (b + 1) << shift) are from buckets_[bucket + b] up to the next bucket's,
  // which is one of them too. Nearly all have one run only, so that little is left to search. (12 stores: 3 ns a record, 9
  // without.)
  struct Stream {
    std::int64_t length = 0;
    std::size_t bucket = 0;
    int shift = 0;
  };
  void add_buckets(std::size_t first_run);
  void find_in_lines(std::span<const std::int64_t> ids, std::span<const std::int32_t> streams, std::int32_t* which,
                     std::int64_t* rows) const;

  std::vector<std::int64_t> ends_;  // of the runs of all streams
  std::vector<RowRun> runs_;
  std::vector<std::uint32_t> buckets_;
  std::vector<Stream> streams_;
  bool are_lines_ = true;  // no stream has more than one run: stream k has the run of that number
};

// Numbers [0, which.size()) in the order of which[i], those of one group in their own order; ends[k] is where group k ends there.
// Throws std::out_of_range for a group that does not exist.
void group_by(std::span<const std::int32_t> which, std::span<std::int64_t> order, std::span<std::int64_t> ends);

}  // namespace penstock
