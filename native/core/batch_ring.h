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
#include <thread>
#include <vector>

#include "core/buffer_pool.h"

namespace penstock {

// One field of a batch: records of `stride` bytes; fill reads records [low, high) of `ids` to out + low * stride, and sets
// present[low..high) to 0 where a record is missing (it is all 1 before).
struct RingField {
  std::uint64_t stride;
  std::function<void(const std::int64_t* ids, std::size_t low, std::size_t high, std::byte* out, std::uint8_t* present)> fill;
};

struct RingBatch {
  std::vector<std::int64_t> ids;
  std::vector<Buffer> values;   // one per field
  std::vector<Buffer> present;  // one per field
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

  void put(std::vector<std::int64_t> ids);
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
