#include "core/batch_ring.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>

#include "core/error.h"

namespace penstock {
namespace {

constexpr std::size_t kMeasuredAtOnce = 512;  // records of a piece that is measured

std::uint8_t* flags(const Buffer& buffer) { return reinterpret_cast<std::uint8_t*>(buffer.get()); }

// Rows of a piece grouped by their source: those of source k are rows[ends[k - 1]] ... rows[ends[k] - 1], with their ids.
struct BySource {
  std::vector<std::size_t> ends;
  std::vector<std::uint32_t> rows;
  std::vector<std::int64_t> ids;
  std::vector<std::uint64_t> seeds;  // if there are any

  BySource(const RingPicks& picks, std::size_t low, std::size_t high, std::size_t sources)
      : ends(sources), rows(high - low), ids(high - low), seeds(picks.seeds.empty() ? 0 : high - low) {
    std::vector<std::size_t> next(sources + 1);
    for (std::size_t row = low; row < high; ++row) ++next[static_cast<std::size_t>(picks.which[row]) + 1];
    for (std::size_t k = 0; k < sources; ++k) ends[k] = next[k + 1] += next[k];
    for (std::size_t row = low; row < high; ++row) {
      const std::size_t at = next[static_cast<std::size_t>(picks.which[row])]++;
      rows[at] = static_cast<std::uint32_t>(row);
      ids[at] = picks.ids[row];
      if (!seeds.empty()) seeds[at] = picks.seeds[row];
    }
  }

  // Calls each(source, first, ids) for every source that has rows: they are rows[first] and the next ones.
  template <class Each>
  void for_each(const Each& each) const {
    for (std::size_t k = 0, first = 0; k < ends.size(); first = ends[k++]) {
      if (ends[k] > first) each(k, first, std::span(ids).subspan(first, ends[k] - first));
    }
  }
};

// Whether a shape has as many items as its record, and no dimension beyond what an array can have.
bool shape_fits(const std::uint32_t* shape, std::uint8_t ndim, std::uint64_t items) {
  double elements = 1;
  double largest = 1;
  for (std::size_t d = 0; d < ndim; ++d) {
    elements *= shape[d];
    largest *= std::max(shape[d], 1U);
  }
  return elements == static_cast<double>(items) && largest < std::ldexp(1.0, 62);
}

// Zeros in the place of runs of padding.
void clear_padding(std::span<const std::int64_t> ids, std::span<const std::int64_t> offsets, std::uint64_t stride,
                   std::byte* out) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0) continue;
    const auto begin = static_cast<std::uint64_t>(offsets[i]);
    const auto end = static_cast<std::uint64_t>(offsets[i + 1]);
    std::memset(out + begin * stride, 0, (end - begin) * stride);
  }
}

std::vector<std::size_t> even_edges(std::size_t count, std::size_t pieces) {
  std::vector<std::size_t> edges(pieces + 1);
  for (std::size_t i = 0; i <= pieces; ++i) edges[i] = count * i / pieces;
  return edges;
}

}  // namespace

struct BatchRing::Job {
  enum class Stage { measure, lay_out, read, done };

  std::unique_ptr<RingBatch> batch = std::make_unique<RingBatch>();
  Stage stage = Stage::read;
  std::vector<std::size_t> edges;       // piece i of the stage has the picks [edges[i], edges[i + 1])
  std::vector<std::size_t> next_edges;  // of the next stage
  std::size_t claimed = 0;
  std::size_t finished = 0;
  std::size_t failed_piece = 0;
  std::uint64_t bytes = 0;  // of its memory; known when it was measured

  // Of a field of varying length: bytes of records (-1: missing), where they go, and their shapes.
  struct Extents {
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> starts;
    Buffer dims;
  };
  std::vector<Extents> extents;

  std::size_t pieces() const { return edges.size() - 1; }
};

BatchRing::BatchRing(std::vector<RingField> fields, std::vector<RingVarying> varying, std::size_t threads, RingRoom room)
    : fields_(std::move(fields)),
      varying_(std::move(varying)),
      helps_(threads > 1),
      room_{std::max<std::size_t>(1, room.batches), room.bytes, std::max<std::uint64_t>(1, room.piece_bytes)} {
  if (threads == 0) throw std::invalid_argument("a ring needs at least 1 thread, got 0");
  for (const RingField& field : fields_) {
    record_bytes_ += field.stride;
    record_work_ += field.stride + field.work;
    num_sources_ = field.sources.size();
  }
  for (const RingVarying& field : varying_) num_sources_ = field.sources.size();
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
  const std::lock_guard turn(joining_);
  for (sync::Thread& thread : threads_) thread.join();
  threads_.clear();
}

void BatchRing::put(RingPicks picks) {
  if (!varying_.empty() && !picks.offsets.empty()) throw std::logic_error("fields of varying length have no runs of records");
  auto job = std::make_unique<Job>();
  job->batch->picks = std::move(picks);
  if (varying_.empty()) {
    lay_out(*job);
    job->edges.swap(job->next_edges);
  } else {
    const std::size_t count = job->batch->picks.ids.size();
    job->stage = Job::Stage::measure;
    job->edges = even_edges(count, std::max<std::size_t>(1, (count + kMeasuredAtOnce - 1) / kMeasuredAtOnce));
    for (const RingVarying& field : varying_) {
      job->extents.push_back({std::vector<std::int64_t>(count), std::vector<std::int64_t>(count),
                              take_buffer(count * field.ndim * sizeof(std::uint32_t))});
    }
  }
  const bool several = job->pieces() > 1;
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  several ? work_.notify_all() : work_.notify_one();
}

// The first piece that may be done. Memory is laid out in the order of the jobs, as far as there is room.
bool BatchRing::claim(Claim& out) {
  std::uint64_t bytes = 0;
  bool has_room = true;
  std::size_t number = 0;
  for (const std::unique_ptr<Job>& job : jobs_) {
    if (job->stage == Job::Stage::measure) {
      has_room = false;
    } else if (!varying_.empty()) {
      bytes += job->bytes;
      has_room = has_room && (job->stage != Job::Stage::lay_out || number < room_.batches || bytes <= room_.bytes);
    }
    const bool may_begin = job->stage != Job::Stage::lay_out || has_room;
    if (may_begin && job->stage != Job::Stage::done && job->claimed < job->pieces()) {
      out = {job.get(), job->claimed++};
      return true;
    }
    ++number;
  }
  return false;
}

void BatchRing::work(Job& job, std::size_t piece) const {
  const std::size_t low = job.edges[piece];
  const std::size_t high = job.edges[piece + 1];
  switch (job.stage) {
    case Job::Stage::measure: return measure(job, low, high);
    case Job::Stage::lay_out: return lay_out(job);
    default: return fill(job, low, high);
  }
}

void BatchRing::measure(Job& job, std::size_t low, std::size_t high) const {
  const RingPicks& picks = job.batch->picks;
  for (std::size_t i = 0; i < varying_.size(); ++i) {
    const RingVarying& field = varying_[i];
    std::int64_t* const sizes = job.extents[i].sizes.data();
    auto* const dims = reinterpret_cast<std::uint32_t*>(job.extents[i].dims.get());
    if (picks.which.empty()) {
      field.sources[0]->sizes(std::span(picks.ids).subspan(low, high - low), field.ndim, sizes + low, dims + low * field.ndim);
    } else {
      const BySource grouped(picks, low, high, num_sources_);
      std::vector<std::int64_t> some(high - low);
      std::vector<std::uint32_t> shapes(some.size() * field.ndim);
      grouped.for_each([&](std::size_t source, std::size_t first, std::span<const std::int64_t> ids) {
        field.sources[source]->sizes(ids, field.ndim, some.data() + first, shapes.data() + first * field.ndim);
      });
      for (std::size_t at = 0; at < some.size(); ++at) {
        sizes[grouped.rows[at]] = some[at];
        std::copy_n(shapes.data() + at * field.ndim, field.ndim, dims + grouped.rows[at] * field.ndim);
      }
    }
    check_sizes(field, sizes + low, dims + low * field.ndim, high - low);
  }
}

void BatchRing::check_sizes(const RingVarying& field, const std::int64_t* sizes, const std::uint32_t* dims,
                            std::size_t count) const {
  for (std::size_t i = 0; i < count; ++i) {
    const auto bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(sizes[i], 0));
    if (bytes % field.item_bytes != 0) throw CorruptError("the size of a record is not a multiple of its element's");
    if (field.ndim > 0 && !shape_fits(dims + i * field.ndim, field.ndim, bytes / field.item_bytes))
      throw CorruptError("the shape of a record does not fit its size");
  }
}

// Where the records of fields of varying length go; a batch of too many bytes is refused before memory is taken for it.
void BatchRing::place_records(Job& job) const {
  job.bytes = job.batch->picks.ids.size() * record_bytes_;
  for (std::size_t i = 0; i < varying_.size(); ++i) {
    std::uint64_t limit = ~std::uint64_t{0};
    for (const VaryingReader* source : varying_[i].sources) limit = std::min(limit, source->batch_bytes());
    std::uint64_t end = 0;  // cannot overflow: a record and the limit of a batch are far below 2^63
    Job::Extents& extents = job.extents[i];
    for (std::size_t k = 0; k < extents.sizes.size(); ++k) {
      extents.starts[k] = static_cast<std::int64_t>(end);
      end += static_cast<std::uint64_t>(std::max<std::int64_t>(extents.sizes[k], 0));
      if (end > limit) {
        throw BatchTooLargeError("the first " + std::to_string(k + 1) + " records have " + std::to_string(end) +
                                 " bytes, more than the limit for a batch");
      }
    }
    job.batch->varying.emplace_back().bytes = end;
    job.bytes += end;
  }
  job.next_edges = {0, 0};
}

// Takes the memory of a batch, and cuts it into pieces of about the same size.
void BatchRing::lay_out(Job& job) const {
  RingBatch& batch = *job.batch;
  const RingPicks& picks = batch.picks;
  const std::size_t records = picks.records();
  const std::size_t flagged = picks.offsets.empty() ? records : 0;
  for (const RingField& field : fields_) {
    batch.values.push_back(take_buffer(records * field.stride));
    batch.present.push_back(take_buffer(flagged));
    std::memset(flags(batch.present.back()), 1, flagged);
  }
  for (std::size_t i = 0; i < varying_.size(); ++i) {
    const Job::Extents& extents = job.extents[i];
    VaryingValues& made = batch.varying[i];
    made.values = take_buffer(made.bytes);
    made.offsets = take_buffer((records + 1) * sizeof(std::int64_t));
    made.present = take_buffer(records);
    auto* const offsets = reinterpret_cast<std::int64_t*>(made.offsets.get());
    const auto item = static_cast<std::int64_t>(varying_[i].item_bytes);
    for (std::size_t k = 0; k < records; ++k) {
      offsets[k] = extents.starts[k] / item;
      flags(made.present)[k] = extents.sizes[k] >= 0 ? 1 : 0;
    }
    offsets[records] = static_cast<std::int64_t>(made.bytes) / item;
    made.shapes = std::move(job.extents[i].dims);
  }
  job.next_edges = reading_pieces(job);
}

std::vector<std::size_t> BatchRing::reading_pieces(const Job& job) const {
  const RingPicks& picks = job.batch->picks;
  const std::size_t count = picks.ids.size();
  if (varying_.empty()) {
    const std::uint64_t bytes = std::max<std::uint64_t>(picks.records() * record_work_, count * 16);
    const std::uint64_t pieces = std::min<std::uint64_t>(count, (bytes + room_.piece_bytes - 1) / room_.piece_bytes);
    return even_edges(count, std::max<std::size_t>(1, pieces));
  }
  std::vector<std::size_t> edges{0};
  std::uint64_t bytes = 0;
  for (std::size_t row = 0; row + 1 < count; ++row) {
    bytes += record_work_ + 16;
    for (const Job::Extents& extents : job.extents)
      bytes += static_cast<std::uint64_t>(std::max<std::int64_t>(extents.sizes[row], 0));
    if (bytes >= room_.piece_bytes) {
      edges.push_back(row + 1);
      bytes = 0;
    }
  }
  edges.push_back(count);
  return edges;
}

void BatchRing::fill(Job& job, std::size_t low, std::size_t high) const {
  RingBatch& batch = *job.batch;
  const std::vector<std::int32_t>& which = batch.picks.which;
  if (which.empty()) {
    fill_run(batch, 0, low, high);
  } else if (batch.picks.offsets.empty()) {
    fill_mixed(batch, low, high);
  } else {
    for (std::size_t begin = low, end = 0; begin < high; begin = end) {
      for (end = begin + 1; end < high && which[end] == which[begin];) ++end;
      fill_run(batch, static_cast<std::size_t>(which[begin]), begin, end);
    }
  }
  fill_varying(job, low, high);
}

void BatchRing::fill_run(RingBatch& batch, std::size_t source, std::size_t low, std::size_t high) const {
  const RingPicks& picks = batch.picks;
  const std::span<const std::int64_t> ids = std::span(picks.ids).subspan(low, high - low);
  const std::span<const std::uint64_t> all(picks.seeds);
  const std::span<const std::uint64_t> seeds = all.empty() ? all : all.subspan(low, high - low);
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    if (picks.offsets.empty()) {
      fields_[i].sources[source]({ids, {}, Places().behind(low), batch.values[i].get(), flags(batch.present[i]), seeds});
    } else {
      const std::span<const std::int64_t> offsets = std::span(picks.offsets).subspan(low, high - low + 1);
      clear_padding(ids, offsets, fields_[i].stride, batch.values[i].get());
      fields_[i].sources[source]({ids, offsets, {}, batch.values[i].get(), nullptr});
    }
  }
}

// The records of all sources are read in one pass, or those of each source together, each to its place in the batch.
void BatchRing::fill_mixed(RingBatch& batch, std::size_t low, std::size_t high) const {
  const RingPicks& picks = batch.picks;
  std::optional<BySource> grouped;  // those from `rest` on
  for (std::size_t i = 0, rest = high; i < fields_.size(); ++i) {
    const RingField& field = fields_[i];
    std::size_t done = low;
    if (field.gather) {
      const std::size_t count = high - low;
      done += field.gather(std::span(picks.ids).subspan(low, count), std::span(picks.which).subspan(low, count),
                           batch.values[i].get() + low * field.stride, flags(batch.present[i]) + low);
    }
    if (done == high) continue;
    if (done != rest) grouped.emplace(picks, rest = done, high, num_sources_);
    grouped->for_each([&](std::size_t source, std::size_t first, std::span<const std::int64_t> ids) {
      const Places places(grouped->rows.data() + first);
      const std::span<const std::uint64_t> all(grouped->seeds);
      const std::span<const std::uint64_t> seeds = all.empty() ? all : all.subspan(first, ids.size());
      fields_[i].sources[source]({ids, {}, places, batch.values[i].get(), flags(batch.present[i]), seeds});
    });
  }
}

void BatchRing::fill_varying(Job& job, std::size_t low, std::size_t high) const {
  const RingPicks& picks = job.batch->picks;
  for (std::size_t i = 0; i < varying_.size(); ++i) {
    const RingVarying& field = varying_[i];
    const Job::Extents& extents = job.extents[i];
    std::byte* const out = job.batch->varying[i].values.get();
    if (picks.which.empty()) {
      const std::span<const std::int64_t> ids = std::span(picks.ids).subspan(low, high - low);
      field.sources[0]->read(ids, extents.starts.data() + low, extents.sizes.data() + low, out);
      continue;
    }
    const BySource grouped(picks, low, high, num_sources_);
    std::vector<std::int64_t> starts(high - low);
    std::vector<std::int64_t> sizes(high - low);
    for (std::size_t at = 0; at < starts.size(); ++at) {
      starts[at] = extents.starts[grouped.rows[at]];
      sizes[at] = extents.sizes[grouped.rows[at]];
    }
    grouped.for_each([&](std::size_t source, std::size_t first, std::span<const std::int64_t> ids) {
      field.sources[source]->read(ids, starts.data() + first, sizes.data() + first, out);
    });
  }
}

void BatchRing::run(const Claim& claim, std::unique_lock<sync::Mutex>& lock) {
  Job& job = *claim.job;
  const bool failed = job.batch->error != nullptr;
  lock.unlock();
  std::exception_ptr error;
  if (!failed) {
    try {
      work(job, claim.piece);
    } catch (...) {
      error = std::current_exception();
    }
  }
  lock.lock();
  if (error != nullptr && (job.batch->error == nullptr || claim.piece < job.failed_piece)) {
    job.batch->error = error;
    job.failed_piece = claim.piece;
  }
  if (++job.finished == job.pieces()) advance(job, lock);
}

// All pieces of a stage are done; the next one begins, unless one failed.
void BatchRing::advance(Job& job, std::unique_lock<sync::Mutex>& lock) {
  if (job.stage == Job::Stage::measure && job.batch->error == nullptr) {
    lock.unlock();  // other threads leave the job alone: all of its pieces are claimed
    std::exception_ptr error;
    try {
      place_records(job);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    job.batch->error = error;
  }
  if (job.batch->error != nullptr || job.stage == Job::Stage::read) {
    job.stage = Job::Stage::done;
  } else {
    job.stage = job.stage == Job::Stage::measure ? Job::Stage::lay_out : Job::Stage::read;
    job.edges.swap(job.next_edges);
    job.claimed = job.finished = 0;
    job.pieces() > 1 ? work_.notify_all() : work_.notify_one();
  }
  if (helps_ || &job == jobs_.front().get()) done_.notify_one();
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
  while (job.stage != Job::Stage::done) {
    Claim mine{};
    if (closing_) return nullptr;
    if (helps_ && claim(mine)) {
      run(mine, lock);
    } else if (done_.wait_until(lock, deadline) == std::cv_status::timeout && job.stage != Job::Stage::done) {
      return nullptr;
    }
  }
  std::unique_ptr<RingBatch> batch = std::move(job.batch);
  jobs_.pop_front();
  if (!varying_.empty() && !jobs_.empty()) work_.notify_one();  // there is room for the memory of another
  return batch;
}

}  // namespace penstock
