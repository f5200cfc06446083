#include "core/batch_ring.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace penstock {
namespace {

constexpr std::uint64_t kRingPieceBytes = 256 << 10;  // what a thread reads at a time

}  // namespace

struct BatchRing::Job {
  std::unique_ptr<RingBatch> batch = std::make_unique<RingBatch>();
  std::size_t pieces = 0;
  std::size_t claimed = 0;
  std::size_t finished = 0;
  std::size_t failed_piece = 0;

  std::size_t edge(std::size_t piece) const { return batch->ids.size() * piece / pieces; }
};

BatchRing::BatchRing(std::vector<RingField> fields, std::size_t threads) : fields_(std::move(fields)), helps_(threads > 1) {
  if (threads == 0) throw std::invalid_argument("a ring needs at least 1 thread, got 0");
  for (const RingField& field : fields_) record_bytes_ += field.stride;
  const std::size_t own = helps_ ? threads - 1 : 1;
  try {
    for (std::size_t i = 0; i < own; ++i) threads_.emplace_back([this] { serve(); });
  } catch (...) {  // the system refused a thread: end those that started
    close();
    throw;
  }
}

BatchRing::~BatchRing() { close(); }

void BatchRing::close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void BatchRing::put(std::vector<std::int64_t> ids) {
  auto job = std::make_unique<Job>();
  const std::uint64_t bytes = ids.size() * std::max<std::uint64_t>(record_bytes_, 16);
  job->pieces = std::max<std::size_t>(1, std::min<std::uint64_t>(ids.size(), (bytes + kRingPieceBytes - 1) / kRingPieceBytes));
  for (const RingField& field : fields_) {
    job->batch->values.push_back(take_buffer(ids.size() * field.stride));
    job->batch->present.push_back(take_buffer(ids.size()));
    std::memset(job->batch->present.back().get(), 1, ids.size());
  }
  job->batch->ids = std::move(ids);
  const bool several = job->pieces > 1;
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  several ? work_.notify_all() : work_.notify_one();
}

bool BatchRing::claim(Claim& out) {
  for (const std::unique_ptr<Job>& job : jobs_) {
    if (job->claimed < job->pieces) {
      out = {job.get(), job->claimed++};
      return true;
    }
  }
  return false;
}

void BatchRing::run(const Claim& claim, std::unique_lock<std::mutex>& lock) {
  Job& job = *claim.job;
  const bool failed = job.batch->error != nullptr;
  lock.unlock();
  std::exception_ptr error;
  if (!failed) {
    const std::size_t low = job.edge(claim.piece);
    const std::size_t high = job.edge(claim.piece + 1);
    try {
      for (std::size_t i = 0; i < fields_.size(); ++i) {
        fields_[i].fill(job.batch->ids.data(), low, high, job.batch->values[i].get(),
                        reinterpret_cast<std::uint8_t*>(job.batch->present[i].get()));
      }
    } catch (...) {
      error = std::current_exception();
    }
  }
  lock.lock();
  if (error != nullptr && (job.batch->error == nullptr || claim.piece < job.failed_piece)) {
    job.batch->error = error;
    job.failed_piece = claim.piece;
  }
  if (++job.finished == job.pieces && &job == jobs_.front().get()) done_.notify_one();
}

void BatchRing::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    Claim mine{};
    work_.wait(lock, [&] { return closing_ || claim(mine); });
    if (mine.job == nullptr) return;  // closing
    run(mine, lock);
    if (closing_) return;
  }
}

std::unique_ptr<RingBatch> BatchRing::take(int milliseconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  std::unique_lock lock(mutex_);
  Job& job = *jobs_.front();
  while (job.finished < job.pieces) {
    Claim mine{};
    if (helps_ && claim(mine)) {
      run(mine, lock);
    } else if (done_.wait_until(lock, deadline) == std::cv_status::timeout && job.finished < job.pieces) {
      return nullptr;
    }
  }
  std::unique_ptr<RingBatch> batch = std::move(job.batch);
  jobs_.pop_front();
  return batch;
}

}  // namespace penstock
