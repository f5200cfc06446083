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
#include <optional>
#include <span>
#include <vector>

#include "core/buffer_pool.h"
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

// The room that the documents of every block take.
void pack_block_rooms(const PackDocuments& documents, const PackRule& rule, std::span<std::int64_t> out);

// The first sequence of every group, and behind the last one: `out` has one place more than there are groups. Blocks of these
// rooms are in the order of the permutation; without one, in their own.
void pack_edges(std::span<const std::int64_t> rooms, std::int64_t length, const Permutation* order, std::uint64_t window,
                std::span<std::int64_t> out);

// Tokens [offset, offset + count) of a document, what is added to it included. 16 bytes.
class PackPiece {
 public:
  static constexpr unsigned kCountBits = 25;
  static constexpr std::uint64_t kMaxDocuments = std::uint64_t{1} << (64 - kCountBits);

  static PackPiece of(std::uint64_t document, std::uint64_t offset, std::uint64_t count) {
    PackPiece made;
    made.which_ = document << kCountBits | count;
    made.offset_ = offset;
    return made;
  }

  std::int64_t document() const { return static_cast<std::int64_t>(which_ >> kCountBits); }
  std::int64_t offset() const { return static_cast<std::int64_t>(offset_); }
  std::int64_t count() const { return static_cast<std::int64_t>(which_ & ((std::uint64_t{1} << kCountBits) - 1)); }

 private:
  std::uint64_t which_;  // the document and the count
  std::uint64_t offset_;
};
static_assert(kMaxPackLength < std::int64_t{1} << PackPiece::kCountBits);

// Pieces of documents, sequence by sequence. Immutable.
class PackPlan {
 public:
  // Sequence i has the pieces first[i] up to first[i + 1].
  PackPlan(PooledArray<std::uint32_t> first, PooledArray<PackPiece> pieces)
      : first_(std::move(first)), pieces_(std::move(pieces)) {}

  std::size_t sequences() const { return first_.size() - 1; }
  std::size_t pieces() const { return pieces_.size(); }

  // The number of pieces of any sequences, and their sum.
  std::size_t count(std::span<const std::int64_t> sequences, std::span<std::int64_t> out) const;
  // Whether all of these are below `size`: the places of sequences whose pieces begin at starts.
  bool has_room(std::span<const std::int64_t> sequences, std::span<const std::int64_t> starts, std::size_t size) const;
  // The pieces of sequences[i] go to places from starts[i] on.
  void write(std::span<const std::int64_t> sequences, std::span<const std::int64_t> starts, std::int64_t* document,
             std::int64_t* offset, std::int64_t* count) const;

 private:
  PooledArray<std::uint32_t> first_;
  PooledArray<PackPiece> pieces_;
};

// The plan of a group with those blocks, over `sequences` sequences (with never: as many as it takes), which come in the order of
// the permutation with that key; without one, as they were made. std::invalid_argument if the documents do not fit.
PackPlan make_pack_plan(const PackDocuments& documents, std::span<const std::int64_t> blocks, const PackRule& rule,
                        std::int64_t sequences, std::optional<std::uint64_t> key = {});

// Pieces of sequences: sequence i has those from first[i] up to first[i + 1].
struct PackedPieces {
  std::span<const std::int64_t> first;
  std::span<const std::int64_t> document;
  std::span<const std::int64_t> offset;
  std::span<const std::int64_t> count;
};

// What is in sequences next to the data: tokens before and behind every document (one each at most), and padding: up to room in
// multiples, and in the place of documents that are banned (their numbers rise).
struct PackAdded {
  std::int64_t before;
  std::int64_t behind;
  std::int64_t multiple;
  std::span<const std::int64_t> banned;
};

inline constexpr std::int64_t kPaddingRun = -1;  // what runs of added tokens begin with
inline constexpr std::int64_t kBeforeRun = -2;
inline constexpr std::int64_t kBehindRun = -3;

// Runs of tokens that fill sequences: where each begins in the data, its tokens, its document (-1: padding) and its place in
// that. `first` has one place more than there are sequences, the others most_pack_runs().
struct PackRunsOut {
  std::int64_t* first;
  std::int64_t* starts;
  std::int64_t* counts;
  std::int64_t* documents;
  std::int64_t* inside;
};

// Pieces as runs of tokens; gives how many. Documents must be below the number of them. std::invalid_argument if pieces are not
// within documents of these bounds, or do not fit sequences.
std::size_t most_pack_runs(const PackAdded& added, std::size_t pieces, std::size_t sequences);
std::size_t make_pack_runs(const PackedPieces& pieces, std::span<const std::int64_t> bounds, std::int64_t length,
                           const PackAdded& added, const PackRunsOut& out);

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
