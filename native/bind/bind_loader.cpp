#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "bind/array.h"
#include "bind/buffer.h"
#include "bind/rows.h"
#include "core/batch_ring.h"
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
  using Fields = std::vector<std::tuple<nb::object, std::int64_t, std::uint64_t>>;
  BoundRing(const Fields& fields, std::size_t threads) : process_(getpid()) {
    std::vector<RingField> made;
    for (const auto& [reader, number, stride] : fields) {
      kept_.push_back(reader);
      if (number >= 0) {
        made.push_back(of_store(nb::cast<const StoreReader&>(reader), static_cast<std::uint32_t>(number), stride));
      } else {
        made.push_back(of_rows(nb::cast<const BoundRows&>(reader).reader, stride));
      }
    }
    ring_ = std::make_unique<BatchRing>(std::move(made), threads);
  }
  ~BoundRing() {
    if (getpid() != process_) (void)ring_.release();
  }

  void put(Ints ids, std::size_t batch) {
    for (std::size_t low = 0; low < ids.size() || low == 0; low += std::max<std::size_t>(batch, 1)) {
      const std::size_t high = std::min(ids.size(), low + batch);
      ring_->put({ids.data() + low, ids.data() + high});
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
    const std::size_t count = batch->ids.size();
    Values values;
    Flags present;
    bool some_missing = false;
    for (std::size_t i = 0; i < batch->values.size(); ++i) {
      const auto* flags = reinterpret_cast<const std::uint8_t*>(batch->present[i].get());
      const bool all = std::memchr(flags, 0, count) == nullptr;
      some_missing |= !all;
      const std::size_t bytes = count * strides_[i];
      values.append(as_array<std::uint8_t>(std::move(batch->values[i]), bytes));
      present.append(all ? nb::none() : nb::cast(as_array<bool>(std::move(batch->present[i]), count)));
    }
    return {values, some_missing ? present : Flags()};
  }

 private:
  RingField of_store(const StoreReader& reader, std::uint32_t number, std::uint64_t stride) {
    strides_.push_back(stride);
    return {stride, [this, &reader, number, stride](const std::int64_t* ids, std::size_t low, std::size_t high, std::byte* out,
                                                    std::uint8_t* present) {
              reader.read_fixed(number, stride, {ids + low, high - low}, out + low * stride, present + low, alone_);
            }};
  }
  RingField of_rows(const RowReader& reader, std::uint64_t stride) {
    strides_.push_back(stride);
    return {stride,
            [this, &reader, stride](const std::int64_t* ids, std::size_t low, std::size_t high, std::byte* out, std::uint8_t*) {
              reader.read({ids + low, high - low}, 1, out + low * stride, alone_);
            }};
  }

  pid_t process_;
  ThreadPool alone_{1};  // a piece is read by the thread that claimed it
  std::vector<nb::object> kept_;
  std::vector<std::uint64_t> strides_;
  std::unique_ptr<BatchRing> ring_;
};

}  // namespace

void bind_loader(nb::module_& m) {
  nb::class_<BoundRing>(m, "BatchRing", "Batches of fixed records read ahead, in order. For one thread; not for forked children.")
      .def(nb::init<const BoundRing::Fields&, std::size_t>(), "fields"_a, "threads"_a)
      .def("put", &BoundRing::put, "ids"_a.noconvert(), "batch"_a, "Ask for batches of so many ids each. The ids must exist.")
      .def("take", &BoundRing::take,
           "The oldest batch asked for: the bytes of each field, and what is present of each (nothing if all is; None for a "
           "field of which all is).")
      .def_prop_ro("size", &BoundRing::size);
}

}  // namespace penstock::bind
