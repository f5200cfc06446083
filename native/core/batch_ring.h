// Batches read ahead: jobs go in with their ids, are filled by threads of the ring's own, and come out in the order they went in.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "core/buffer_pool.h"

namespace penstock {

// Reads records one after the other to `out`, and sets present[i] to 0 where record i is missing (it is all 1 before).
// With offsets, which are one more than ids, run i begins with record ids[i] and goes to record offsets[i] of `out`, up to
// offsets[i + 1]; nothing is missing then.
using RingFill = std::function<void(std::span<const std::int64_t> ids, std::span<const std::int64_t> offsets, std::byte* out,
                                    std::uint8_t* present)>;

// One field of a batch: records of `stride` bytes, read in one way from each source.
struct RingField {
  std::uint64_t stride;
  std::vector<RingFill> sources;
};

// What is in a batch.
struct RingPicks {
  std::vector<std::int64_t> ids;
  std::vector<std::int32_t> which;    // the source of each id; empty: all are of the first
  std::vector<std::int64_t> offsets;  // from 0 on, if ids begin runs of records

  std::size_t records() const { return offsets.empty() ? ids.size() : static_cast<std::size_t>(offsets.back()); }
};

struct RingBatch {
  RingPicks picks;
  std::vector<Buffer> values;   // one per field
  std::vector<Buffer> present;  // one per field, a byte for each record, unless they come in runs
  std::exception_ptr error;     // of the lowest piece that failed
};

// put and take are for one thread. Not to be used, nor destroyed, in a forked child.
class BatchRing {
 public:
  // threads: how many pieces are read at once; with two or more, the thread that takes is one of them while it waits.
  BatchRing(std::vector<RingField> fields, std::size_t threads);
  ~BatchRing();
  BatchRing(const BatchRing&) = delete;
  BatchRing& operator=(const BatchRing&) = delete;

  void put(RingPicks picks);
  std::size_t size() const { return jobs_.size(); }

  // The oldest batch, if it is ready within about the given time; null otherwise. The ring must not be empty.
  std::unique_ptr<RingBatch> take(int milliseconds);

 private:
  void close();
  struct Job;
  struct Claim {
    Job* job;
    std::size_t piece;
  };

  bool claim(Claim& out);  // with the lock held
  void fill(RingBatch& batch, std::size_t low, std::size_t high) const;
  void fill_run(RingBatch& batch, std::size_t source, std::size_t low, std::size_t high) const;
  void fill_mixed(RingBatch& batch, std::size_t low, std::size_t high) const;
  void run(const Claim& claim, std::unique_lock<std::mutex>& lock);
  void serve();

  std::vector<RingField> fields_;
  std::uint64_t record_bytes_ = 0;
  bool helps_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
  std::deque<std::unique_ptr<Job>> jobs_;
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace penstock
