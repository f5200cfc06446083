// Batches read ahead: jobs go in with their ids, are filled by threads of the ring's own, and come out in the order they went in.
//
// A job with fields of varying length passes three stages: its records are measured, its memory is laid out, its records are
// read. Measuring and reading are cut into pieces that several threads do at once. Memory is laid out in the order of the jobs,
// and only as far ahead as the limit of the ring allows. A job of fixed records begins with reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/buffer_pool.h"
#include "core/copy.h"
#include "core/sync.h"
#include "core/varying_reader.h"

namespace penstock {

// Records of one source for a batch: record ids[i] goes to place places[i] of `out`, and present there is set to 0 if it is
// missing (it is 1 before). With offsets, which are one more than ids, run i begins with record ids[i] and goes to record
// offsets[i] of `out`, up to offsets[i + 1]; nothing is missing then. A run whose id is below 0 is padding: there is nothing to
// read, and zeros are in its place. Seeds, one for each id, are for what is drawn when a record is made.
struct RingRead {
  std::span<const std::int64_t> ids;
  std::span<const std::int64_t> offsets;
  Places places;
  std::byte* out;
  std::uint8_t* present;
  std::span<const std::uint64_t> seeds = {};
};
using RingFill = std::function<void(const RingRead& read)>;

// Records of several sources in one pass: record ids[i] of source which[i] goes to place i of `out`; present is as in RingRead.
// Gives how many it has read, from the first on; the others are read source by source.
using RingGather = std::function<std::size_t(std::span<const std::int64_t> ids, std::span<const std::int32_t> which,
                                             std::byte* out, std::uint8_t* present)>;

// One field of a batch: records of `stride` bytes, read in one way from each source, and in another from all of them, if there is
// one. Making a record takes as long as to copy its bytes and `work` more: pieces of a batch are cut by that.
struct RingField {
  std::uint64_t stride;
  std::vector<RingFill> sources;
  RingGather gather = nullptr;
  std::uint64_t work = 0;
};

// One field of a batch whose records have different lengths: items of `item_bytes` bytes, with ndim dimensions (0: one, whose
// size is the number of items). The readers must outlive the ring.
struct RingVarying {
  std::uint64_t item_bytes;
  std::uint8_t ndim;
  std::vector<const VaryingReader*> sources;
};

// What is in a batch.
struct RingPicks {
  std::vector<std::int64_t> ids;
  std::vector<std::int32_t> which;        // the source of each id; empty: all are of the first
  std::vector<std::int64_t> offsets;      // from 0 on, if ids begin runs of records
  std::vector<std::uint64_t> seeds = {};  // of each id; empty: there are none

  std::size_t records() const { return offsets.empty() ? ids.size() : static_cast<std::size_t>(offsets.back()); }
};

// Record i of a field of varying length has the items offsets[i] up to offsets[i + 1] of the values, and ndim numbers of the
// shapes.
struct VaryingValues {
  Buffer values;
  std::uint64_t bytes = 0;  // of the values
  Buffer offsets;           // int64, one more than records
  Buffer shapes;            // uint32
  Buffer present;           // a byte for each record
};

struct RingBatch {
  RingPicks picks;
  std::vector<Buffer> values;          // one per field of fixed records
  std::vector<Buffer> present;         // one per such field, a byte for each record, unless they come in runs
  std::vector<VaryingValues> varying;  // one per field of varying length
  std::exception_ptr error;            // of the lowest piece that failed
};

// How many batches are in memory before they are taken: as many as fit `bytes` one after the other, but at least `batches`. It is
// kept for batches with fields of varying length; those of fixed records are in memory from when they are put.
// A thread reads about piece_bytes at a time.
struct RingRoom {
  std::size_t batches = 1;
  std::uint64_t bytes = ~std::uint64_t{0};
  std::uint64_t piece_bytes = 256 << 10;
};

// put and take are for one thread. Not to be used, nor destroyed, in a forked child.
class BatchRing {
 public:
  // threads: how many pieces are read at once; with two or more, the thread that takes is one of them while it waits.
  BatchRing(std::vector<RingField> fields, std::size_t threads) : BatchRing(std::move(fields), {}, threads, {}) {}
  BatchRing(std::vector<RingField> fields, std::vector<RingVarying> varying, std::size_t threads, RingRoom room);
  ~BatchRing();
  BatchRing(const BatchRing&) = delete;
  BatchRing& operator=(const BatchRing&) = delete;

  // Fields of varying length have no runs.
  void put(RingPicks picks);
  std::size_t size() const { return jobs_.size(); }

  // The oldest batch, if it is ready within about the given time; null otherwise. The ring must not be empty.
  std::unique_ptr<RingBatch> take(int milliseconds);

  // Ends the threads, and waits for that; a take that waits gives up within its time. Idempotent.
  void close();

 private:
  struct Job;
  struct Claim {
    Job* job;
    std::size_t piece;
  };

  bool claim(Claim& out);  // with the lock held
  void work(Job& job, std::size_t piece) const;
  void measure(Job& job, std::size_t low, std::size_t high) const;
  void check_sizes(const RingVarying& field, const std::int64_t* sizes, const std::uint32_t* dims, std::size_t count) const;
  void place_records(Job& job) const;
  void lay_out(Job& job) const;
  std::vector<std::size_t> reading_pieces(const Job& job) const;
  void fill(Job& job, std::size_t low, std::size_t high) const;
  void fill_run(RingBatch& batch, std::size_t source, std::size_t low, std::size_t high) const;
  void fill_mixed(RingBatch& batch, std::size_t low, std::size_t high) const;
  void fill_varying(Job& job, std::size_t low, std::size_t high) const;
  void run(const Claim& claim, std::unique_lock<sync::Mutex>& lock);
  void advance(Job& job, std::unique_lock<sync::Mutex>& lock);
  void serve();

  std::vector<RingField> fields_;
  std::vector<RingVarying> varying_;
  std::uint64_t record_bytes_ = 0;
  std::uint64_t record_work_ = 0;  // the same and what is more to do
  std::size_t num_sources_ = 0;
  bool helps_;
  RingRoom room_;
  sync::Mutex mutex_;
  sync::Condition work_;
  sync::Condition done_;
  std::deque<std::unique_ptr<Job>> jobs_;
  bool closing_ = false;
  sync::Mutex joining_;
  std::vector<sync::Thread> threads_;
};

}  // namespace penstock
