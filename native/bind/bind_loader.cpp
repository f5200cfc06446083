#include <dlfcn.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "bind/array.h"
#include "bind/buffer.h"
#include "bind/path.h"
#include "bind/rows.h"
#include "bind/spans.h"
#include "bind/varying.h"
#include "core/batch_ring.h"
#include "core/fork_local.h"
#include "core/image_reader.h"
#include "core/read_ahead.h"
#include "core/store_reader.h"

namespace penstock::bind {

using namespace nb::literals;

namespace {

// Whether the interpreter is on its way out; threads that are not its main one may then no longer touch it. Asked by name: the
// function is in the stable ABI since 3.13 only, and was called something else before.
bool is_ending() {
  using Question = int (*)();
  static const auto question = [] {
    void* const found = dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
    return reinterpret_cast<Question>(found != nullptr ? found : dlsym(RTLD_DEFAULT, "_Py_IsFinalizing"));
  }();
  return question != nullptr && question() != 0;
}

// The reader of the bytes of pictures, and what makes arrays of them.
struct BoundImages {
  BoundVarying bytes;
  nb::object maker;
  std::optional<BoundVarying> partner;
  ImageReader reader;
};

// A ring and the readers it reads with. In a forked child, which has none of its threads, it is left alone.
class BoundRing {
 public:
  using Reader = std::pair<nb::object, std::int64_t>;
  using Fields = std::vector<std::pair<std::vector<Reader>, std::uint64_t>>;
  using Varying = std::vector<std::tuple<std::vector<BoundVarying>, std::uint64_t, std::uint8_t>>;
  BoundRing(const Fields& fields, std::size_t threads, Varying varying, std::size_t room_batches, std::uint64_t room_bytes,
            std::uint64_t piece_bytes)
      : forks_(fork_count()), varying_(std::move(varying)) {
    if (fields.empty() && varying_.empty()) throw std::invalid_argument("expected at least one field");
    const std::size_t sources = fields.empty() ? std::get<0>(varying_.front()).size() : fields.front().first.size();
    lengths_.assign(sources, ~std::uint64_t{0});
    ring_ = std::make_shared<BatchRing>(fixed_fields(fields), varying_fields(), threads,
                                        RingRoom{room_batches, room_bytes, piece_bytes});
  }
  ~BoundRing() { leave_to_parent(); }

  // The threads end: what they read may go away afterwards, however long this object lives.
  void close() {
    leave_to_parent();
    if (ring_ == nullptr) return;
    const std::shared_ptr<BatchRing> ring = ring_;  // another thread may be in take()
    {
      const nb::gil_scoped_release free;
      ring->close();
    }
    ring_.reset();
  }

  using Which = std::optional<Array<const std::int32_t>>;
  using Seeds = std::optional<Array<const std::uint64_t>>;
  void put(Ints ids, std::size_t batch, const Which& which, const Seeds& seeds) {
    need_open();
    check(ids, which, {});
    if (seeds) need_same_length(ids.size(), seeds->size());
    for (std::size_t low = 0; low < ids.size() || low == 0; low += std::max<std::size_t>(batch, 1)) {
      const std::size_t high = std::min(ids.size(), low + batch);
      ring_->put({part(ids, low, high),
                  which ? part(*which, low, high) : std::vector<std::int32_t>{},
                  {},
                  seeds ? part(*seeds, low, high) : std::vector<std::uint64_t>{}});
    }
  }
  void put_runs(Ints starts, Ints offsets, Ints cuts, const Which& which) {
    need_open();
    need_same_length(starts.size() + 1, offsets.size());
    const std::span<const std::int64_t> edges = span(cuts);
    if (!std::is_sorted(offsets.data(), offsets.data() + offsets.size()) || !std::is_sorted(edges.begin(), edges.end()) ||
        edges.empty() || edges.front() < 0 || static_cast<std::size_t>(edges.back()) > starts.size()) {
      throw std::invalid_argument("expected rising offsets, and rising cuts among the runs");
    }
    check(starts, which, span(offsets));
    for (std::size_t i = 0; i + 1 < edges.size(); ++i) {
      const auto low = static_cast<std::size_t>(edges[i]);
      const auto high = static_cast<std::size_t>(edges[i + 1]);
      std::vector<std::int64_t> own = part(offsets, low, high + 1);
      for (std::int64_t& offset : own) offset -= offsets.data()[low];
      ring_->put({part(starts, low, high), which ? part(*which, low, high) : std::vector<std::int32_t>{}, std::move(own), {}});
    }
  }
  std::size_t size() const { return ring_ == nullptr ? 0 : ring_->size(); }

  using Values = nb::typed<nb::list, nb::object>;
  using Flags = nb::typed<nb::list, std::optional<OwnArray<bool>>>;
  std::pair<Values, Flags> take() {
    need_open();
    if (ring_->size() == 0) throw std::invalid_argument("the ring is empty");
    std::unique_ptr<RingBatch> batch;
    const std::shared_ptr<BatchRing> ring = ring_;
    while (batch == nullptr) {
      need_open();
      PyThreadState* const thread = PyEval_SaveThread();
      batch = ring->take(100);
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
    const auto add_flags = [&](Buffer flags) {
      const bool all = std::memchr(flags.get(), 0, flagged) == nullptr;
      some_missing |= !all;
      present.append(all ? nb::none() : nb::cast(as_array<bool>(std::move(flags), flagged)));
    };
    for (std::size_t i = 0; i < batch->values.size(); ++i) {
      values.append(as_array<std::uint8_t>(std::move(batch->values[i]), records * strides_[i]));
      add_flags(std::move(batch->present[i]));
    }
    for (std::size_t i = 0; i < batch->varying.size(); ++i) {
      VaryingValues& one = batch->varying[i];
      const std::size_t ndim = std::get<2>(varying_[i]);
      values.append(nb::make_tuple(
          as_array<std::uint8_t>(std::move(one.values), one.bytes), as_array<std::int64_t>(std::move(one.offsets), records + 1),
          ndim == 0 ? nb::none() : nb::cast(as_array<std::uint32_t, 2>(std::move(one.shapes), {records, ndim}))));
      add_flags(std::move(one.present));
    }
    return {values, some_missing ? present : Flags()};
  }

 private:
  // A forked child has none of the threads, and must not wait for them.
  void leave_to_parent() {
    if (ring_ == nullptr || fork_count() == forks_) return;
    (void)new std::shared_ptr<BatchRing>(std::move(ring_));
    ring_.reset();
  }
  void need_open() const {
    if (ring_ == nullptr) throw std::invalid_argument("the ring is closed");
  }
  template <class T>
  static std::vector<T> part(const Array<const T>& values, std::size_t low, std::size_t high) {
    return {values.data() + low, values.data() + high};
  }
  // The records must exist: readers do not look. With offsets, they begin runs.
  void check(const Ints& ids, const Which& which, std::span<const std::int64_t> offsets) const {
    if (which) need_same_length(ids.size(), which->size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto source = which ? static_cast<std::size_t>(which->data()[i]) : std::size_t{0};
      if (source >= lengths_.size()) throw std::invalid_argument("a record is of a source that is not there");
      if (ids.data()[i] < 0 && !offsets.empty()) continue;  // padding
      const auto first = static_cast<std::uint64_t>(ids.data()[i]);
      const std::uint64_t count = offsets.empty() ? 1 : static_cast<std::uint64_t>(offsets[i + 1] - offsets[i]);
      if (first > lengths_[source] || count > lengths_[source] - first) {
        throw nb::index_error(("expected records of source " + std::to_string(source) + " in [0, " +
                               std::to_string(lengths_[source]) + "), got " + std::to_string(count) + " from " +
                               std::to_string(ids.data()[i]))
                                  .c_str());
      }
    }
  }

  void need_sources(std::size_t count) const {
    if (count == 0 || count != lengths_.size()) {
      throw std::invalid_argument("expected every field to have the same number of readers, and at least one");
    }
  }
  // No more records of a source may be asked for than its shortest reader has.
  void bound(std::size_t source, std::uint64_t length) { lengths_[source] = std::min(lengths_[source], length); }
  std::vector<RingField> fixed_fields(const Fields& fields) {
    std::vector<RingField> made;
    for (const auto& [readers, stride] : fields) {
      need_sources(readers.size());
      made.push_back({stride, {}, {}});
      std::vector<StoreGather::Source> stores;
      strides_.push_back(stride);
      for (const auto& [reader, number] : readers) {
        const std::size_t source = made.back().sources.size();
        kept_.push_back(reader);
        if (nb::isinstance<BoundDocuments>(reader)) {
          const auto& documents = nb::cast<const BoundDocuments&>(reader);
          const std::span<const std::int64_t> bounds = span(documents.bounds);
          bound(source, bounds.empty() ? 0 : static_cast<std::uint64_t>(bounds.back()));
          made.back().sources.push_back(of_documents(*documents.line));
        } else if (nb::isinstance<BoundImages>(reader)) {
          const auto& images = nb::cast<const BoundImages&>(reader);
          if (nb::cast<const ImageMaker&>(images.maker).bytes() != stride)
            throw std::invalid_argument("expected pictures of as many bytes as the field has");
          bound(source, images.bytes.length);
          made.back().work = kImageWork;
          made.back().sources.push_back([&images](const RingRead& read) { images.reader.read(read); });
        } else if (nb::isinstance<BoundSpans>(reader)) {
          const auto& spans = nb::cast<const BoundSpans&>(reader);
          bound(source, spans.column->length());
          made.back().sources.push_back(of_spans(*spans.reader, stride));
        } else if (number >= 0) {
          const auto& store = nb::cast<const StoreReader&>(reader);
          bound(source, store.length());
          stores.push_back({&store, static_cast<std::uint32_t>(number)});
          made.back().sources.push_back(of_store(store, stores.back().field, stride));
        } else {
          const RowReader& rows = nb::cast<const BoundRows&>(reader).reader;
          if (rows.stride() != stride) throw std::invalid_argument("expected rows of as many bytes as the field has");
          bound(source, rows.length());
          made.back().sources.push_back(of_rows(rows));
        }
      }
      if (stores.size() == readers.size() && StoreGather::can_read(stores, stride))
        made.back().gather = of_stores(stores, stride);
    }
    return made;
  }
  std::vector<RingVarying> varying_fields() {
    std::vector<RingVarying> made;
    for (const auto& [readers, item_bytes, ndim] : varying_) {
      need_sources(readers.size());
      if (item_bytes == 0) throw std::invalid_argument("expected items of at least one byte");
      made.push_back({item_bytes, ndim, {}});
      for (const BoundVarying& one : readers) {
        bound(made.back().sources.size(), one.length);
        made.back().sources.push_back(one.reader.get());
      }
    }
    return made;
  }

  RingFill of_store(const StoreReader& reader, std::uint32_t number, std::uint64_t stride) {
    return [this, &reader, number, stride](const RingRead& read) {
      if (!read.offsets.empty()) throw std::logic_error("records of a store are not read in runs");
      reader.read_fixed(number, stride, read.ids, read.out, read.present, alone_, read.places);
    };
  }
  static RingGather of_stores(const std::vector<StoreGather::Source>& stores, std::uint64_t stride) {
    return [gather = std::make_shared<const StoreGather>(stores, stride)](auto ids, auto which, auto* out, auto* present) {
      return gather->read(ids, which, out, present);
    };
  }
  static RingFill of_documents(const DocumentLine& line) {
    return [&line](const RingRead& read) {
      if (!read.offsets.empty()) {
        line.read(read.ids, read.offsets, read.out);
      } else if (!read.ids.empty()) {
        throw std::logic_error("the tokens of documents are read in runs");
      }
    };
  }
  RingFill of_spans(const RunReader& reader, std::uint64_t stride) {
    return [this, &reader, stride](const RingRead& read) {
      if (!read.offsets.empty()) throw std::logic_error("records anywhere in files are not read in runs");
      reader.read_fixed(read.ids, stride, read.out, read.present, alone_, read.places);
    };
  }
  RingFill of_rows(const RowReader& reader) {
    return [this, &reader](const RingRead& read) {
      if (read.offsets.empty()) {
        reader.read(read.ids, 1, read.out, alone_, read.places);
      } else {
        reader.read_spans(read.ids, read.offsets, read.out, alone_);
      }
    };
  }

  std::uint32_t forks_;
  ThreadPool alone_{1};  // a piece is read by the thread that claimed it
  std::vector<nb::object> kept_;
  Varying varying_;
  std::vector<std::uint64_t> strides_;
  std::vector<std::uint64_t> lengths_;  // records of each source
  std::shared_ptr<BatchRing> ring_;
};

void make_documents(BoundDocuments* self, std::vector<BoundVarying> readers, Ints bounds, BoundDocuments::Whiches which,
                    BoundDocuments::Rows rows, std::uint64_t token_bytes, Array<const std::uint8_t> separator) {
  const std::span<const std::byte> ends = std::as_bytes(span(separator));
  std::vector<const VaryingReader*> plain;
  for (const BoundVarying& one : readers) plain.push_back(one.reader.get());
  const DocumentPlaces places{span(bounds), which ? span(*which) : std::span<const std::int32_t>{},
                              rows ? span(*rows) : std::span<const std::int64_t>{}};
  auto line = std::make_unique<DocumentLine>(std::move(plain), places, token_bytes, std::vector(ends.begin(), ends.end()));
  new (self) BoundDocuments{std::move(readers), std::move(bounds), std::move(which), std::move(rows), std::move(line)};
}

void make_image_reader(BoundImages* self, const BoundVarying& bytes, nb::object maker, bool needs_all,
                       std::optional<BoundVarying> partner) {
  const ImageReader reader(*bytes.reader, nb::cast<const ImageMaker&>(maker), needs_all,
                           partner ? partner->reader.get() : nullptr);
  new (self) BoundImages{bytes, std::move(maker), std::move(partner), reader};
}

}  // namespace

void bind_loader(nb::module_& m) {
  nb::class_<BoundImages>(m, "ImageReader", "Pictures of records, for a ring. Safe to use from several threads.")
      .def("__init__", &make_image_reader, "reader"_a, "maker"_a, "needs_all"_a, "partner"_a.none() = nb::none(),
           nb::sig("def __init__(self, reader: VaryingReader, maker: ImageMaker, needs_all: bool, "
                   "partner: VaryingReader | None = None) -> None"),
           "The bytes of pictures, and what makes arrays of them; with needs_all, a missing picture is an error. ``partner`` has "
           "those of which they are masks.");
  nb::class_<BoundDocuments>(m, "DocumentLine", "Documents as one line of tokens, for a ring. Safe to use from several threads.")
      .def("__init__", &make_documents, "readers"_a, "bounds"_a.noconvert(), "which"_a.noconvert().none(),
           "rows"_a.noconvert().none(), "token_bytes"_a, "separator"_a.noconvert(),
           "Document i has the tokens [bounds[i], bounds[i + 1]), of which the last are the separator; it is row rows[i] of "
           "reader "
           "which[i] (row i of the first).");
  nb::class_<ReadAhead>(m, "ReadAhead", "Extents of files that are read directly, brought into memory before they are needed.")
      .def(nb::init<std::uint64_t>(), "most_bytes"_a, "The oldest that were not used are dropped when there are more bytes.")
      .def(
          "fetch",
          [](ReadAhead& self, const PathName& path, std::uint64_t start, std::uint64_t stop, std::int64_t step) {
            const nb::gil_scoped_release free;
            self.fetch(path.bytes, start, stop, step);
          },
          "path"_a, "start"_a, "stop"_a, "step"_a = ReadAhead::kNow,
          "Read bytes of a file as soon as steps up to that one have passed; what cannot be read is left to those who need it.")
      .def("passed", &ReadAhead::passed, "step"_a, nb::call_guard<nb::gil_scoped_release>(), "Steps up to this one have passed.")
      .def("wait", &ReadAhead::wait, nb::call_guard<nb::gil_scoped_release>(), "Wait until all that was asked for is there.")
      .def("close", &ReadAhead::close, nb::call_guard<nb::gil_scoped_release>(), "Drop everything. Idempotent.")
      .def_prop_ro("size", &ReadAhead::size, "Bytes in memory or on their way.");
  nb::class_<BoundRing>(m, "BatchRing", "Batches of records read ahead, in order. For one thread; not for forked children.")
      .def(nb::init<const BoundRing::Fields&, std::size_t, BoundRing::Varying, std::size_t, std::uint64_t, std::uint64_t>(),
           "fields"_a, "threads"_a, "varying"_a = BoundRing::Varying{}, "room_batches"_a = RingRoom{}.batches,
           "room_bytes"_a = RingRoom{}.bytes, "piece_bytes"_a = RingRoom{}.piece_bytes,
           "Fields as ([(reader, number of the field or -1 for rows) of each source], bytes of a record); fields of varying "
           "length "
           "as ([reader of each source], bytes of an item, dimensions or 0). Batches with such fields are in memory before they "
           "are taken as far as they fit room_bytes, but at least room_batches. A thread reads piece_bytes at a time.")
      .def("put", &BoundRing::put, "ids"_a.noconvert(), "batch"_a, "which"_a.noconvert().none() = nb::none(),
           "seeds"_a.noconvert().none() = nb::none(),
           "Ask for batches of ``batch`` ids each; ``which`` says of which source each is, ``seeds`` what is drawn for it, where "
           "there are pictures. IndexError if one does not exist.")
      .def("put_runs", &BoundRing::put_runs, "starts"_a.noconvert(), "offsets"_a.noconvert(), "cuts"_a.noconvert(),
           "which"_a.noconvert().none() = nb::none(),
           "Ask for batches of runs of rows: run i has those from starts[i] on, offsets[i + 1] - offsets[i] of them; batch b has "
           "the runs from cuts[b] up to cuts[b + 1]. A run that starts below 0 is padding: zeros. IndexError if a row does not "
           "exist.")
      .def("take", &BoundRing::take,
           "The oldest batch asked for: the bytes of each field, and what is present of each (nothing if all is; None for a "
           "field of which all is). Behind the fixed fields are those of varying length: (bytes, offsets in items, shapes or "
           "None).")
      .def("close", &BoundRing::close,
           "End the threads of the ring, and wait for that. What they read may go away then. Idempotent.")
      .def_prop_ro("size", &BoundRing::size);
}

}  // namespace penstock::bind
