#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <algorithm>

#include "bind/array.h"
#include "core/pack.h"

namespace penstock::bind {

using namespace nb::literals;

namespace {

PackDocuments documents_of(const Ints& bounds, std::uint64_t block, std::int64_t extra) {
  if (bounds.size() == 0 || block == 0 || extra < 0) {
    throw std::invalid_argument("expected bounds of documents, blocks of at least 1 and at least 0 extra tokens");
  }
  return {span(bounds), block, extra};
}

PackRule rule_of(std::int64_t length, std::int64_t multiple, Split split, bool drops) {
  if (multiple < 1 || length < 1 || length > kMaxPackLength || length % multiple != 0) {
    throw std::invalid_argument("expected a length of at most 2**24, a multiple of what pieces are rounded to");
  }
  return {length, multiple, split, drops};
}

std::int64_t edges(Ints bounds, std::uint64_t block, std::int64_t extra, const Permutation* order, std::uint64_t window,
                   std::int64_t length, std::int64_t multiple, IntsOut out) {
  const PackDocuments documents = documents_of(bounds, block, extra);
  const PackRule rule = rule_of(length, multiple, Split::fit, false);
  if (window == 0) throw std::invalid_argument("expected a window of at least 1");
  const std::uint64_t blocks = documents.blocks();
  if (order != nullptr) need_same_length(blocks, order->size());
  need_same_length(blocks / window + (blocks % window != 0) + 1, out.size());
  const nb::gil_scoped_release free;
  return pack_edges(documents, rule, order, window, span(out));
}

void make_plan(PackPlan* self, Ints bounds, std::uint64_t block, std::int64_t extra, Ints blocks, std::int64_t length,
               std::int64_t multiple, Split split, bool drops, std::int64_t sequences, std::optional<std::uint64_t> key) {
  const PackDocuments documents = documents_of(bounds, block, extra);
  const PackRule rule = rule_of(length, multiple, split, drops);
  const nb::gil_scoped_release free;
  need_below(span(blocks), documents.blocks());
  PackPlan plan = make_pack_plan(documents, span(blocks), rule, sequences);
  if (key) {
    std::vector<std::int64_t> order(plan.sequences());
    Permutation(order.size(), *key).run(0, 1, order);
    plan = plan.in_order(order);
  }
  new (self) PackPlan(std::move(plan));
}

void copy(const std::vector<std::int64_t>& from, const IntsOut& out) {
  need_same_length(from.size(), out.size());
  std::copy(from.begin(), from.end(), out.data());
}

template <class T>
T* data_of(const std::optional<Array<T>>& array, std::size_t count) {
  if (!array) return nullptr;
  need_same_length(count, array->size());
  return array->data();
}

void fill_fields(Array<std::uint8_t> tokens, std::size_t item, bool is_signed, Array<const std::uint8_t> added, Ints starts,
                 Ints counts, Ints documents, std::size_t length, std::pair<std::int32_t, std::int32_t> segments,
                 const std::optional<Array<std::int32_t>>& segment, const std::optional<Array<std::int32_t>>& position,
                 const std::optional<Array<std::int64_t>>& labels, std::size_t multiple,
                 const std::optional<Array<std::int32_t>>& cu_seqlens, const std::optional<Array<std::int32_t>>& max_seqlen) {
  if (item == 0 || length == 0 || tokens.size() % (item * length) != 0) throw std::invalid_argument("expected whole sequences");
  need_same_length(starts.size(), counts.size());
  need_same_length(starts.size(), documents.size());
  const std::size_t count = tokens.size() / item;
  const PackFields fields{reinterpret_cast<std::byte*>(tokens.data()),
                          item,
                          is_signed,
                          std::as_bytes(span(added)),
                          segments.first,
                          segments.second,
                          data_of(segment, count),
                          data_of(position, count),
                          data_of(labels, count),
                          multiple,
                          data_of(cu_seqlens, count / length * (length + 1)),
                          data_of(max_seqlen, count / length)};
  const nb::gil_scoped_release free;
  fill_pack_fields({span(starts), span(counts), span(documents), length}, count, fields);
}

}  // namespace

void bind_pack(nb::module_& m) {
  m.attr("MAX_PACK_LENGTH") = kMaxPackLength;
  nb::enum_<Split>(m, "Split", "Where packing cuts documents.")
      .value("FIT", Split::fit)
      .value("ALWAYS", Split::always)
      .value("NEVER", Split::never);
  m.def(
      "pack_edges", &edges, "bounds"_a.noconvert(), "block"_a, "extra"_a, "order"_a.none(), "window"_a, "length"_a, "multiple"_a,
      "out"_a.noconvert(),
      "Fill out with the first sequence of every group of blocks, in the order of a permutation, and behind the last one. Gives "
      "the room that all documents take.");
  nb::class_<PackPlan>(m, "PackPlan", "Pieces of documents, sequence by sequence. Immutable.")
      .def("__init__", &make_plan, "bounds"_a.noconvert(), "block"_a, "extra"_a, "blocks"_a.noconvert(), "length"_a, "multiple"_a,
           "split"_a, "drops"_a, "sequences"_a, "key"_a.none() = nb::none(),
           "The plan of a group of blocks over that number of sequences (Split.NEVER: as many as it takes), in the order of the "
           "permutation with that key.")
      .def_prop_ro("num_sequences", &PackPlan::sequences)
      .def_prop_ro("num_pieces", [](const PackPlan& self) { return self.document.size(); })
      .def(
          "write",
          [](const PackPlan& self, const IntsOut& first, const IntsOut& document, const IntsOut& offset, const IntsOut& count) {
            copy(self.first, first);
            copy(self.document, document);
            copy(self.offset, offset);
            copy(self.count, count);
          },
          "first"_a.noconvert(), "document"_a.noconvert(), "offset"_a.noconvert(), "count"_a.noconvert(),
          "Fill first with the first piece of every sequence (and behind the last), the others with the document of every piece, "
          "its place in it, and its tokens.");
  m.def("fill_pack_fields", &fill_fields, "tokens"_a.noconvert(), "item"_a, "is_signed"_a, "added"_a.noconvert(),
        "starts"_a.noconvert(), "counts"_a.noconvert(), "documents"_a.noconvert(), "length"_a, "segments"_a,
        "segment"_a.noconvert().none(), "position"_a.noconvert().none(), "labels"_a.noconvert().none(), "multiple"_a,
        "cu_seqlens"_a.noconvert().none(), "max_seqlen"_a.noconvert().none(),
        "Put added tokens where runs start below 0, and fill the fields that are asked for. segments: the number of the first "
        "piece, and that of padding.");
}

}  // namespace penstock::bind
