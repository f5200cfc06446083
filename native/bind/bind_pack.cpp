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

void block_rooms(Ints bounds, std::uint64_t block, std::int64_t extra, std::int64_t length, std::int64_t multiple, IntsOut out) {
  const PackDocuments documents = documents_of(bounds, block, extra);
  const PackRule rule = rule_of(length, multiple, Split::fit, false);
  need_same_length(documents.blocks(), out.size());
  const nb::gil_scoped_release free;
  pack_block_rooms(documents, rule, span(out));
}

void edges(Ints rooms, std::int64_t length, const Permutation* order, std::uint64_t window, IntsOut out) {
  if (window == 0 || length < 1) throw std::invalid_argument("expected a window and a length of at least 1");
  if (order != nullptr) need_same_length(rooms.size(), order->size());
  need_same_length(rooms.size() / window + (rooms.size() % window != 0) + 1, out.size());
  const nb::gil_scoped_release free;
  pack_edges(span(rooms), length, order, window, span(out));
}

void make_plan(PackPlan* self, Ints bounds, std::uint64_t block, std::int64_t extra, Ints blocks, std::int64_t length,
               std::int64_t multiple, Split split, bool drops, std::int64_t sequences, std::optional<std::uint64_t> key) {
  const PackDocuments documents = documents_of(bounds, block, extra);
  const PackRule rule = rule_of(length, multiple, split, drops);
  const nb::gil_scoped_release free;
  need_below(span(blocks), documents.blocks());
  new (self) PackPlan(make_pack_plan(documents, span(blocks), rule, sequences, key));
}

std::size_t count_pieces(const PackPlan& self, Ints sequences, IntsOut out) {
  need_same_length(sequences.size(), out.size());
  const nb::gil_scoped_release free;
  need_below(span(sequences), self.sequences());
  return self.count(span(sequences), span(out));
}

void write_pieces(const PackPlan& self, Ints sequences, Ints starts, IntsOut document, IntsOut offset, IntsOut count) {
  need_same_length(sequences.size(), starts.size());
  need_same_length(document.size(), offset.size());
  need_same_length(document.size(), count.size());
  const nb::gil_scoped_release free;
  need_below(span(sequences), self.sequences());
  if (!self.has_room(span(sequences), span(starts), document.size())) {
    throw std::invalid_argument("expected outputs with room for all pieces");
  }
  self.write(span(sequences), span(starts), document.data(), offset.data(), count.data());
}

// How many runs there are is known when they are made: outputs have room for the most.
std::size_t make_runs(Ints first, Ints document, Ints offset, Ints count, Ints bounds, std::int64_t length, bool before,
                      bool behind, std::int64_t multiple, Ints banned, IntsOut out_first, IntsOut starts, IntsOut counts,
                      IntsOut documents, IntsOut inside) {
  const PackAdded added{before, behind, multiple, span(banned)};
  if (length < 1 || multiple < 1) throw std::invalid_argument("expected a length and a multiple of at least 1");
  if (first.size() == 0 || bounds.size() == 0) throw std::invalid_argument("expected the first pieces of sequences, and bounds");
  need_same_length(document.size(), offset.size());
  need_same_length(document.size(), count.size());
  need_same_length(first.size(), out_first.size());
  const std::size_t most = most_pack_runs(added, document.size(), first.size() - 1);
  for (const IntsOut* const out : {&starts, &counts, &documents, &inside}) need_same_length(most, out->size());
  const nb::gil_scoped_release free;
  need_below(span(document), bounds.size() - 1);
  std::int64_t last = 0;
  for (const std::int64_t one : span(first)) {
    if (one < last || first.data()[0] != 0) throw std::invalid_argument("expected first pieces that rise from 0");
    last = one;
  }
  need_same_length(static_cast<std::size_t>(last), document.size());
  for (std::size_t i = 0; i < count.size(); ++i) {
    if (count.data()[i] < 0 || count.data()[i] > length || offset.data()[i] < 0 || offset.data()[i] > INT64_MAX - length) {
      throw std::invalid_argument("expected pieces of at most a sequence");
    }
  }
  return make_pack_runs({span(first), span(document), span(offset), span(count)}, span(bounds), length, added,
                        {out_first.data(), starts.data(), counts.data(), documents.data(), inside.data()});
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
  m.def("pack_block_rooms", &block_rooms, "bounds"_a.noconvert(), "block"_a, "extra"_a, "length"_a, "multiple"_a,
        "out"_a.noconvert(), "Fill out with the room that the documents of every block take.");
  m.def("pack_edges", &edges, "rooms"_a.noconvert(), "length"_a, "order"_a.none(), "window"_a, "out"_a.noconvert(),
        "Fill out with the first sequence of every group of blocks of these rooms, in the order of a permutation, and behind the "
        "last one.");
  nb::class_<PackPlan>(m, "PackPlan", "Pieces of documents, sequence by sequence. Immutable.")
      .def("__init__", &make_plan, "bounds"_a.noconvert(), "block"_a, "extra"_a, "blocks"_a.noconvert(), "length"_a, "multiple"_a,
           "split"_a, "drops"_a, "sequences"_a, "key"_a.none() = nb::none(),
           "The plan of a group of blocks over that number of sequences (Split.NEVER: as many as it takes), in the order of the "
           "permutation with that key.")
      .def_prop_ro("num_sequences", &PackPlan::sequences)
      .def_prop_ro("num_pieces", &PackPlan::pieces)
      .def("count", &count_pieces, "sequences"_a.noconvert(), "out"_a.noconvert(),
           "Fill out with the number of pieces of each of these sequences. Gives the sum.")
      .def(
          "write", &write_pieces, "sequences"_a.noconvert(), "starts"_a.noconvert(), "document"_a.noconvert(),
          "offset"_a.noconvert(), "count"_a.noconvert(),
          "Fill in the document of every piece of these sequences, its place in it, and its tokens: those of a sequence from its "
          "start on.");
  m.def(
      "make_pack_runs", &make_runs, "first"_a.noconvert(), "document"_a.noconvert(), "offset"_a.noconvert(),
      "count"_a.noconvert(), "bounds"_a.noconvert(), "length"_a, "before"_a, "behind"_a, "multiple"_a, "banned"_a.noconvert(),
      "out_first"_a.noconvert(), "starts"_a.noconvert(), "counts"_a.noconvert(), "documents"_a.noconvert(),
      "inside"_a.noconvert(),
      "Fill in the runs of tokens that pieces and what is added to them make: where each begins (below 0: -1 padding, -2 before, "
      "-3 behind a document), its tokens, its document and the place in it; and the first run of every sequence. Gives how "
      "many.");
  m.def(
      "most_pack_runs",
      [](std::size_t pieces, std::size_t sequences, bool before, bool behind, std::int64_t multiple, bool bans) {
        const std::int64_t one = 0;
        const std::span<const std::int64_t> banned(&one, bans ? 1 : 0);
        return most_pack_runs({before, behind, multiple, banned}, pieces, sequences);
      },
      "pieces"_a, "sequences"_a, "before"_a, "behind"_a, "multiple"_a, "bans"_a, "The most runs that make_pack_runs gives.");
  m.def("fill_pack_fields", &fill_fields, "tokens"_a.noconvert(), "item"_a, "is_signed"_a, "added"_a.noconvert(),
        "starts"_a.noconvert(), "counts"_a.noconvert(), "documents"_a.noconvert(), "length"_a, "segments"_a,
        "segment"_a.noconvert().none(), "position"_a.noconvert().none(), "labels"_a.noconvert().none(), "multiple"_a,
        "cu_seqlens"_a.noconvert().none(), "max_seqlen"_a.noconvert().none(),
        "Put added tokens where runs start below 0, and fill the fields that are asked for. segments: the number of the first "
        "piece, and that of padding.");
}

}  // namespace penstock::bind
