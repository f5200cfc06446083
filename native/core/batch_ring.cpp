#include "core/batch_ring.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace penstock {
namespace {

constexpr std::uint64_t kRingPieceBytes = 256 << 10;  // what a thread reads at a time
constexpr std::uint64_t kLargeRecord = 16 << 10;      // from here on, a call for each record costs little

std::uint8_t* flags(const Buffer& buffer) { return reinterpret_cast<std::uint8_t*>(buffer.get()); }

// Rows of a piece grouped by their source: those of source k are rows[ends[k - 1]] ... rows[ends[k] - 1], with their ids.
struct BySource {
  std::vector<std::size_t> ends;
  std::vector<std::size_t> rows;
  std::vector<std::int64_t> ids;

  BySource(const RingPicks& picks, std::size_t low, std::size_t high, std::size_t sources)
      : ends(sources), rows(high - low), ids(high - low) {
    std::vector<std::size_t> next(sources + 1);
    for (std::size_t row = low; row < high; ++row) ++next[static_cast<std::size_t>(picks.which[row]) + 1];
    for (std::size_t k = 0; k < sources; ++k) ends[k] = next[k + 1] += next[k];
    for (std::size_t row = low; row < high; ++row) {
      const std::size_t at = next[static_cast<std::size_t>(picks.which[row])]++;
      rows[at] = row;
      ids[at] = picks.ids[row];
    }
  }
};

}  // namespace

struct BatchRing::Job {
  std::unique_ptr<RingBatch> batch = std::make_unique<RingBatch>();
  std::size_t pieces = 0;
  std::size_t claimed = 0;
  std::size_t finished = 0;
  std::size_t failed_piece = 0;

  std::size_t edge(std::size_t piece) const { return batch->picks.ids.size() * piece / pieces; }
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

void BatchRing::put(RingPicks picks) {
  auto job = std::make_unique<Job>();
  const std::size_t records = picks.records();
  const std::size_t flagged = picks.offsets.empty() ? records : 0;
  const std::uint64_t bytes = std::max<std::uint64_t>(records * record_bytes_, picks.ids.size() * 16);
  const std::uint64_t pieces = std::min<std::uint64_t>(picks.ids.size(), (bytes + kRingPieceBytes - 1) / kRingPieceBytes);
  job->pieces = std::max<std::size_t>(1, pieces);
  for (const RingField& field : fields_) {
    job->batch->values.push_back(take_buffer(records * field.stride));
    job->batch->present.push_back(take_buffer(flagged));
    std::memset(flags(job->batch->present.back()), 1, flagged);
  }
  job->batch->picks = std::move(picks);
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

void BatchRing::fill(RingBatch& batch, std::size_t low, std::size_t high) const {
  const std::vector<std::int32_t>& which = batch.picks.which;
  if (which.empty()) {
    fill_run(batch, 0, low, high);
  } else if (batch.picks.offsets.empty() && record_bytes_ < kLargeRecord) {
    fill_mixed(batch, low, high);
  } else {
    for (std::size_t end = 0; low < high; low = end) {
      for (end = low + 1; end < high && which[end] == which[low];) ++end;
      fill_run(batch, static_cast<std::size_t>(which[low]), low, end);
    }
  }
}

void BatchRing::fill_run(RingBatch& batch, std::size_t source, std::size_t low, std::size_t high) const {
  const RingPicks& picks = batch.picks;
  const std::span<const std::int64_t> ids = std::span(picks.ids).subspan(low, high - low);
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    if (picks.offsets.empty()) {
      fields_[i].sources[source](ids, {}, batch.values[i].get() + low * fields_[i].stride, flags(batch.present[i]) + low);
    } else {
      const std::span<const std::int64_t> offsets = std::span(picks.offsets).subspan(low, high - low + 1);
      fields_[i].sources[source](ids, offsets, batch.values[i].get(), nullptr);
    }
  }
}

// Small records of one source are read together, and then put in their places while they are in the cache.
void BatchRing::fill_mixed(RingBatch& batch, std::size_t low, std::size_t high) const {
  const BySource grouped(batch.picks, low, high, fields_.empty() ? 0 : fields_.front().sources.size());
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    const std::uint64_t stride = fields_[i].stride;
    const Buffer records = take_buffer((high - low) * stride);
    const Buffer present = take_buffer(high - low);
    std::memset(flags(present), 1, high - low);
    for (std::size_t k = 0, begin = 0; k < grouped.ends.size(); begin = grouped.ends[k++]) {
      const std::size_t count = grouped.ends[k] - begin;
      if (count == 0) continue;
      fields_[i].sources[k]({grouped.ids.data() + begin, count}, {}, records.get() + begin * stride, flags(present) + begin);
    }
    for (std::size_t at = 0; at < grouped.rows.size(); ++at) {
      std::memcpy(batch.values[i].get() + grouped.rows[at] * stride, records.get() + at * stride, stride);
      flags(batch.present[i])[grouped.rows[at]] = flags(present)[at];
    }
  }
}

void BatchRing::run(const Claim& claim, std::unique_lock<std::mutex>& lock) {
  Job& job = *claim.job;
  const bool failed = job.batch->error != nullptr;
  lock.unlock();
  std::exception_ptr error;
  if (!failed) {
    try {
      fill(*job.batch, job.edge(claim.piece), job.edge(claim.piece + 1));
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
