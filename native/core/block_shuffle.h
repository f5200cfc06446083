// BlockShuffle: a permutation of [0, n) that reads whole blocks, a window of them at a time.
//
//   blocks      K = ceil(n / block); all have `block` records but the last, which may be short
//   sequence    a permutation of the K blocks; place j belongs to lane j mod lanes, at rank j div lanes within the lane
//   group       `window` consecutive blocks of a lane; its records are permuted together (the short block counts last in its
//   group) position p  below even * lanes: record p div lanes of lane p mod lanes; `even` is the length of the shortest lane
//               above: the tail, the ends of the longer lanes put one after the other and cut into `lanes` runs of equal length;
//               position p reads run p mod lanes, so even there neighbouring ranks share few blocks
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/divider.h"
#include "core/fork_local.h"
#include "core/permutation.h"

namespace penstock {

struct BlockGeometry {
  std::uint64_t n;
  std::uint64_t block;
  std::uint64_t window;
  std::uint64_t lanes;
};

// The order of one epoch. Safe to use from several threads: what is remembered between calls (the group last read of each lane,
// at most kCacheBytes) never changes a result.
class BlockEpoch {
 public:
  static constexpr std::size_t kCacheBytes = std::size_t{64} << 20;

  // block, window and lanes at least 1. sequence_key permutes the blocks; a group's key is
  // absorb(group_root, group_ordinal).
  BlockEpoch(BlockGeometry geometry, std::uint64_t sequence_key, std::uint64_t group_root, Simd level = best_simd());
  ~BlockEpoch();

  std::uint64_t size() const { return geometry_.n; }

  // out[i] = the id at position start + i * step
  void run(std::uint64_t start, std::uint64_t step, std::span<std::int64_t> out);
  // out[i] = the id at positions[i]; the position of ids[i]
  void forward(std::span<const std::int64_t> positions, std::span<std::int64_t> out);
  void inverse(std::span<const std::int64_t> ids, std::span<std::int64_t> out);

 private:
  struct Group;
  struct Cache;
  struct LanePlace {
    std::uint64_t lane;
    std::uint64_t offset;  // in records, from the start of the lane
  };
  struct GroupPlace {
    std::uint64_t lane;
    std::uint64_t number;  // of the group within the lane
  };

  std::uint64_t lane_blocks(std::uint64_t lane) const;
  std::uint64_t lane_records(std::uint64_t lane) const;
  std::uint64_t tail_before(std::uint64_t lane) const;
  LanePlace place(std::uint64_t position) const;
  std::uint64_t position(LanePlace place) const;
  std::uint64_t group_start(GroupPlace place) const;
  GroupPlace group_of(LanePlace place) const;
  std::uint64_t group_ordinal(GroupPlace place) const { return place.number * geometry_.lanes + place.lane; }
  std::shared_ptr<const Group> make_group(GroupPlace place) const;
  std::shared_ptr<const Group> recall_group(GroupPlace place);
  struct Steps {
    std::uint64_t delta;   // from one record of a lane to the next that is wanted
    std::uint64_t stride;  // from its place in the output to the next one's
  };
  void run_lane(LanePlace from, std::size_t count, Steps steps, std::int64_t* out);
  void read_group(const Group& group, std::uint64_t first, std::size_t count, Steps steps, std::int64_t* out) const;
  void block_bases(const Group& group, std::span<std::int64_t> blocks) const;

  BlockGeometry geometry_;  // block and window cut to what n needs
  std::uint64_t num_blocks_;
  std::uint64_t group_root_;
  Simd level_;
  Divider block_;
  Permutation sequence_;
  std::uint64_t missing_;     // records the last block is short of
  std::uint64_t short_lane_;  // where the short block is; UINT64_MAX if there is none
  std::uint64_t short_rank_;
  std::uint64_t extra_lanes_;  // lanes below this have one block more than the others
  std::uint64_t even_;
  ForkLocal<Cache> cache_;
};

}  // namespace penstock
