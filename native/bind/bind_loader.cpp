#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "bind/array.h"
#include "bind/buffer.h"
#include "bind/rows.h"
#include "core/batch_ring.h"
#include "core/fork_local.h"
#include "core/store_reader.h"

namespace penstock::bind {

using namespace nb::literals;

namespace {

// Whether the interpreter is on its way out; threads that are not its main one may then no longer touch it.
bool is_ending() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// A ring and the readers it reads with. In a forked child, which has none of its threads, it is left alone.
class BoundRing {
 public:
  using Reader = std::pair<nb::object, std::int64_t>;
  using Fields = std::vector<std::pair<std::vector<Reader>, std::uint64_t>>;
  BoundRing(const Fields& fields, std::size_t threads) : forks_(fork_count()) {
    if (fields.empty()) throw std::invalid_argument("expected at least one field");
    std::vector<RingField> made;
    for (const auto& [readers, stride] : fields) {
      if (readers.empty() || readers.size() != fields.front().first.size()) {
        throw std::invalid_argument("expected every field to have the same number of readers, and at least one");
      }
      made.push_back({stride, {}});
      strides_.push_back(stride);
      for (const auto& [reader, number] : readers) {
        kept_.push_back(reader);
        made.back().sources.push_back(
            number >= 0 ? of_store(nb::cast<const StoreReader&>(reader), static_cast<std::uint32_t>(number), stride)
                        : of_rows(nb::cast<const BoundRows&>(reader).reader));
      }
    }
    sources_ = fields.front().first.size();
    ring_ = std::make_unique<BatchRing>(std::move(made), threads);
  }
  ~BoundRing() {
    if (fork_count() != forks_) (void)ring_.release();
  }

  using Which = std::optional<Array<const std::int32_t>>;
  void put(Ints ids, std::size_t batch, const Which& which) {
    check(ids, which);
    for (std::size_t low = 0; low < ids.size() || low == 0; low += std::max<std::size_t>(batch, 1)) {
      const std::size_t high = std::min(ids.size(), low + batch);
      ring_->put({part(ids, low, high), which ? part(*which, low, high) : std::vector<std::int32_t>{}, {}});
    }
  }
  void put_runs(Ints starts, Ints offsets, Ints cuts, const Which& which) {
    check(starts, which);
    need_same_length(starts.size() + 1, offsets.size());
    const std::span<const std::int64_t> edges = span(cuts);
    if (!std::is_sorted(offsets.data(), offsets.data() + offsets.size()) || !std::is_sorted(edges.begin(), edges.end()) ||
        edges.empty() || edges.front() < 0 || static_cast<std::size_t>(edges.back()) > starts.size()) {
      throw std::invalid_argument("expected rising offsets, and rising cuts among the runs");
    }
    for (std::size_t i = 0; i + 1 < edges.size(); ++i) {
      const auto low = static_cast<std::size_t>(edges[i]);
      const auto high = static_cast<std::size_t>(edges[i + 1]);
      std::vector<std::int64_t> own = part(offsets, low, high + 1);
      for (std::int64_t& offset : own) offset -= offsets.data()[low];
      ring_->put({part(starts, low, high), which ? part(*which, low, high) : std::vector<std::int32_t>{}, std::move(own)});
    }
  }
  std::size_t size() const { return ring_->size(); }

  using Values = nb::typed<nb::list, OwnArray<std::uint8_t>>;
  using Flags = nb::typed<nb::list, std::optional<OwnArray<bool>>>;
  std::pair<Values, Flags> take() {
    if (ring_->size() == 0) throw std::invalid_argument("the ring is empty");
    std::unique_ptr<RingBatch> batch;
    while (batch == nullptr) {
      PyThreadState* const thread = PyEval_SaveThread();
      batch = ring_->take(100);
      while (is_ending()) sleep(1);  // to come back now would end this thread in the middle of C++, and with it the program
      PyEval_RestoreThread(thread);
      if (batch == nullptr && PyErr_CheckSignals() != 0) throw nb::python_error();
    }
    if (batch->error != nullptr) std::rethrow_exception(batch->error);
    const std::size_t records = batch->picks.records();
    const std::size_t flagged = batch->picks.offsets.empty() ? records : 0;
    Values values;
    Flags present;
    bool some_missing = false;
    for (std::size_t i = 0; i < batch->values.size(); ++i) {
      const auto* flags = reinterpret_cast<const std::uint8_t*>(batch->present[i].get());
      const bool all = std::memchr(flags, 0, flagged) == nullptr;
      some_missing |= !all;
      const std::size_t bytes = records * strides_[i];
      values.append(as_array<std::uint8_t>(std::move(batch->values[i]), bytes));
      present.append(all ? nb::none() : nb::cast(as_array<bool>(std::move(batch->present[i]), flagged)));
    }
    return {values, some_missing ? present : Flags()};
  }

 private:
  template <class T>
  static std::vector<T> part(const Array<const T>& values, std::size_t low, std::size_t high) {
    return {values.data() + low, values.data() + high};
  }
  void check(const Ints& ids, const Which& which) const {
    if (!which) return;
    need_same_length(ids.size(), which->size());
    for (const std::int32_t one : span(*which)) {
      if (static_cast<std::size_t>(one) >= sources_) throw std::invalid_argument("a record is of a source that is not there");
    }
  }

  RingFill of_store(const StoreReader& reader, std::uint32_t number, std::uint64_t stride) {
    return [this, &reader, number, stride](std::span<const std::int64_t> ids, std::span<const std::int64_t> offsets,
                                           std::byte* out, std::uint8_t* present) {
      if (!offsets.empty()) throw std::logic_error("records of a store are not read in runs");
      reader.read_fixed(number, stride, ids, out, present, alone_);
    };
  }
  RingFill of_rows(const RowReader& reader) {
    return
        [this, &reader](std::span<const std::int64_t> ids, std::span<const std::int64_t> offsets, std::byte* out, std::uint8_t*) {
          offsets.empty() ? reader.read(ids, 1, out, alone_) : reader.read_spans(ids, offsets, out, alone_);
        };
  }

  std::uint32_t forks_;
  ThreadPool alone_{1};  // a piece is read by the thread that claimed it
  std::vector<nb::object> kept_;
  std::vector<std::uint64_t> strides_;
  std::size_t sources_ = 1;
  std::unique_ptr<BatchRing> ring_;
};

}  // namespace

void bind_loader(nb::module_& m) {
  nb::class_<BoundRing>(m, "BatchRing", "Batches of fixed records read ahead, in order. For one thread; not for forked children.")
      .def(nb::init<const BoundRing::Fields&, std::size_t>(), "fields"_a, "threads"_a,
           "Fields as ([(reader, number of the field or -1 for rows) of each source], bytes of a record).")
      .def("put", &BoundRing::put, "ids"_a.noconvert(), "batch"_a, "which"_a.noconvert().none() = nb::none(),
           "Ask for batches of so many ids each; ``which`` says of which source each is. The ids must exist.")
      .def("put_runs", &BoundRing::put_runs, "starts"_a.noconvert(), "offsets"_a.noconvert(), "cuts"_a.noconvert(),
           "which"_a.noconvert().none() = nb::none(),
           "Ask for batches of runs of rows: run i has those from starts[i] on, offsets[i + 1] - offsets[i] of them; batch b has "
           "the runs from cuts[b] up to cuts[b + 1]. The rows must exist.")
      .def("take", &BoundRing::take,
           "The oldest batch asked for: the bytes of each field, and what is present of each (nothing if all is; None for a "
           "field of which all is).")
      .def_prop_ro("size", &BoundRing::size);
}

}  // namespace penstock::bind
