// Packing at random access, by allotted best fit: documents go in groups, each with a number of sequences that a formula gives,
// so that any group is planned alone.
//
//   blocks   runs of `block` documents in the order of the data, the last one may be short; an epoch permutes them
//   groups   runs of `window` blocks in that order; group w has the sequences [E(w), E(w + 1)), E(w) = ceil(P(w) / length) + w,
//            where P(w) is the size of all groups before it
//   plan     the pieces of a group's documents and the sequence of each, best fit decreasing; docs/reference/order.md has it
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/permutation.h"

namespace penstock {

inline constexpr std::int64_t kMaxPackLength = std::int64_t{1} << 24;

// Document i has the tokens [bounds[i], bounds[i + 1]) of the data, and `extra` more that are added.
struct PackDocuments {
  std::span<const std::int64_t> bounds;
  std::uint64_t block;
  std::int64_t extra;

  std::uint64_t count() const { return bounds.empty() ? 0 : bounds.size() - 1; }
  std::uint64_t blocks() const { return (count() + block - 1) / block; }
};

// fit: documents are cut only if they are longer than a sequence, or where nothing else is left. always: they are put one after
// the other and cut where sequences end. never: each is in one sequence; of longer ones only the begin, or nothing.
enum class Split { fit, always, never };

struct PackRule {
  std::int64_t length;    // of sequences, a multiple of `multiple`
  std::int64_t multiple;  // pieces take room in multiples of this
  Split split;
  bool drops;  // with never: documents that are longer are left out, not cut off
};

// The first sequence of every group, and behind the last one: `out` has one place more than there are groups. Blocks are in the
// order of the permutation; without one, in their own. Gives the room that all documents take.
std::int64_t pack_edges(const PackDocuments& documents, const PackRule& rule, const Permutation* order, std::uint64_t window,
                        std::span<std::int64_t> out);

// Pieces of documents, sequence by sequence: sequence b has pieces first[b] up to first[b + 1], in this order.
struct PackPlan {
  std::vector<std::int64_t> first;
  std::vector<std::int64_t> document;
  std::vector<std::int64_t> offset;  // in the document with what is added
  std::vector<std::int64_t> count;

  std::size_t sequences() const { return first.size() - 1; }
  // The same with the sequences in another order: sequence i is number order[i] of this one. All of them must be there once.
  PackPlan in_order(std::span<const std::int64_t> order) const;
};

// The plan of a group with those blocks, over `sequences` sequences (with never: as many as it takes).
// std::invalid_argument if the documents do not fit.
PackPlan make_pack_plan(const PackDocuments& documents, std::span<const std::int64_t> blocks, const PackRule& rule,
                        std::int64_t sequences);

// Runs of tokens that fill sequences, one after the other; none crosses the end of one. Runs of the same document in a row are a
// piece; those that are not of a document (-1) are padding. A run that starts below 0 is of tokens that are not read: token
// -1 - start of the added ones.
struct PackRuns {
  std::span<const std::int64_t> starts;
  std::span<const std::int64_t> counts;
  std::span<const std::int64_t> documents;
  std::size_t length;
};

// What is made of the tokens of sequences; a null pointer is not wanted. There are as many of each as tokens, but for the last
// two.
struct PackFields {
  std::byte* tokens;
  std::size_t item;  // bytes of a token
  bool is_signed;
  std::span<const std::byte> added;  // padding first, then what else runs name
  std::int32_t first_segment;
  std::int32_t padding_segment;
  std::int32_t* segment;   // number of a token's piece within its sequence
  std::int32_t* position;  // its place in the piece; 0 on padding
  std::int64_t* labels;    // the next token of the piece; -100 at its end and on padding
  std::size_t multiple;    // pieces take room in multiples of this
  // length + 1 for each sequence: 0, where the room of every piece and every stretch of padding ends, and length from there on.
  std::int32_t* cu_seqlens;
  std::int32_t* max_seqlen;  // one for each sequence: the longest of these
};

// Puts the added tokens in their places, and fills the fields. std::invalid_argument if runs do not tile whole sequences.
void fill_pack_fields(const PackRuns& runs, std::size_t num_tokens, const PackFields& fields);

}  // namespace penstock
