#include "core/pack.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace penstock {
namespace {

constexpr std::size_t kAtOnce = 4096;  // blocks whose order is computed together
constexpr std::size_t kPrefetched = 16;
constexpr std::int32_t kNone = -1;

std::int64_t rounded(std::int64_t count, std::int64_t multiple) {
  return multiple == 1 ? count : (count + multiple - 1) / multiple * multiple;
}

// Calls each(document, tokens) for the documents of a block.
template <class Each>
void for_documents_of(const PackDocuments& documents, std::uint64_t block, const Each& each) {
  const std::uint64_t low = block * documents.block;
  const std::uint64_t high = std::min(documents.count(), low + documents.block);
  for (std::uint64_t i = low; i < high; ++i) {
    const std::int64_t tokens = documents.bounds[i + 1] - documents.bounds[i];
    if (tokens < 0) throw std::invalid_argument("expected bounds of documents that rise");
    each(static_cast<std::int64_t>(i), tokens + documents.extra);
  }
}

// The room that the documents of a block take.
std::int64_t room_of(const PackDocuments& documents, std::uint64_t block, std::int64_t multiple) {
  std::int64_t room = 0;
  if (multiple == 1) {
    const std::uint64_t low = block * documents.block;
    const std::uint64_t high = std::min(documents.count(), low + documents.block);
    room = documents.bounds[high] - documents.bounds[low] + static_cast<std::int64_t>(high - low) * documents.extra;
  } else {
    for_documents_of(documents, block, [&](std::int64_t, std::int64_t tokens) { room += rounded(tokens, multiple); });
  }
  return room;
}

// Blocks may be all over the data: looks a few ahead of block number i.
void prefetch_bounds(const PackDocuments& documents, std::span<const std::int64_t> blocks, std::size_t i) {
  if (i + kPrefetched < blocks.size()) {
    __builtin_prefetch(&documents.bounds[static_cast<std::uint64_t>(blocks[i + kPrefetched]) * documents.block]);
  }
}

// The same for blocks.
template <class Each>
void for_documents(const PackDocuments& documents, std::span<const std::int64_t> blocks, const Each& each) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    prefetch_bounds(documents, blocks, i);
    for_documents_of(documents, static_cast<std::uint64_t>(blocks[i]), each);
  }
}

// A set of whole numbers below n, as bits in levels: a word of a level says which 64 words below it are not 0.
class BitSet {
 public:
  explicit BitSet(std::size_t n) {
    do {
      n = n / 64 + 1;
      levels_.emplace_back(n, 0);
    } while (n > 1);
  }

  void insert(std::size_t value) {
    for (std::vector<std::uint64_t>& level : levels_) {
      std::uint64_t& word = level[value / 64];
      const bool was_empty = word == 0;
      word |= std::uint64_t{1} << value % 64;
      if (!was_empty) return;
      value /= 64;
    }
  }

  void erase(std::size_t value) {
    for (std::vector<std::uint64_t>& level : levels_) {
      std::uint64_t& word = level[value / 64];
      word &= ~(std::uint64_t{1} << value % 64);
      if (word != 0) return;
      value /= 64;
    }
  }

  // The least member that is not below a value, or -1.
  std::int64_t find_from(std::size_t value) const {
    for (std::size_t level = 0; level < levels_.size() && value / 64 < levels_[level].size(); ++level) {
      const std::uint64_t word = levels_[level][value / 64] & ~std::uint64_t{0} << value % 64;
      if (word != 0) return descend(level, value / 64 * 64 + static_cast<std::size_t>(std::countr_zero(word)));
      value = value / 64 + 1;
    }
    return -1;
  }

  // The greatest member, or -1.
  std::int64_t last() const {
    if (levels_.back()[0] == 0) return -1;
    std::size_t value = 0;
    for (std::size_t level = levels_.size(); level-- > 0;) {
      value = value * 64 + 63 - static_cast<std::size_t>(std::countl_zero(levels_[level][value]));
    }
    return static_cast<std::int64_t>(value);
  }

 private:
  std::int64_t descend(std::size_t level, std::size_t value) const {
    while (level-- > 0) value = value * 64 + static_cast<std::size_t>(std::countr_zero(levels_[level][value]));
    return static_cast<std::int64_t>(value);
  }

  std::vector<std::vector<std::uint64_t>> levels_;
};

// Sequences by the room that is left in them; of several with as much room, the one that got it last comes first.
class Rooms {
 public:
  explicit Rooms(std::int64_t length) : head_(static_cast<std::size_t>(length) + 1, kNone), sizes_(head_.size()) {}

  std::int32_t size() const { return static_cast<std::int32_t>(next_.size()); }

  // One more sequence, with that much room left.
  std::int32_t open(std::int64_t room) {
    next_.push_back(kNone);
    push(size() - 1, room);
    return size() - 1;
  }

  std::int64_t least_from(std::int64_t room) const { return sizes_.find_from(static_cast<std::size_t>(room)); }
  std::int64_t greatest() const { return sizes_.last(); }

  // A sequence with exactly that much room, of which `used` is taken.
  std::int32_t take(std::int64_t room, std::int64_t used) {
    const auto place = static_cast<std::size_t>(room);
    const std::int32_t sequence = head_[place];
    head_[place] = next_[static_cast<std::size_t>(sequence)];
    if (head_[place] == kNone) sizes_.erase(place);
    push(sequence, room - used);
    return sequence;
  }

 private:
  void push(std::int32_t sequence, std::int64_t room) {
    if (room == 0) return;
    const auto place = static_cast<std::size_t>(room);
    if (head_[place] == kNone) sizes_.insert(place);
    next_[static_cast<std::size_t>(sequence)] = head_[place];
    head_[place] = sequence;
  }

  std::vector<std::int32_t> head_;  // by room
  std::vector<std::int32_t> next_;  // by sequence
  BitSet sizes_;
};

struct Piece {
  std::int64_t document;
  std::int64_t offset;
  std::int32_t count;
  std::int32_t sequence;
};

[[noreturn]] void fail() { throw std::invalid_argument("the documents of a group do not fit its sequences"); }

// Calls each(piece) for the pieces of a document that is cut only if it is longer than a sequence.
template <class Each>
void for_pieces(const PackRule& rule, std::int64_t document, std::int64_t tokens, const Each& each) {
  const bool is_whole = rule.split == Split::never;
  if (is_whole && tokens > rule.length && rule.drops) return;
  for (std::int64_t offset = 0; offset < tokens; offset += rule.length) {
    each(Piece{document, offset, static_cast<std::int32_t>(std::min(rule.length, tokens - offset)), kNone});
    if (is_whole) return;
  }
}

// The pieces of documents by falling size, equal ones in their order: a counting sort. (The documents are walked twice, so that
// pieces are written once, to their places.)
std::vector<Piece> sorted_pieces(const PackDocuments& documents, std::span<const std::int64_t> blocks, const PackRule& rule) {
  const auto most = static_cast<std::size_t>(rule.length);
  const auto place = [&](const Piece& piece) { return most - static_cast<std::size_t>(rounded(piece.count, rule.multiple)); };
  const auto walk = [&](const auto& each) {
    for_documents(documents, blocks,
                  [&](std::int64_t document, std::int64_t tokens) { for_pieces(rule, document, tokens, each); });
  };
  std::vector<std::int64_t> next(most + 1, 0);
  walk([&](const Piece& piece) { ++next[place(piece) + 1]; });
  for (std::size_t i = 1; i <= most; ++i) next[i] += next[i - 1];
  std::vector<Piece> pieces(static_cast<std::size_t>(next[most]));
  walk([&](const Piece& piece) { pieces[static_cast<std::size_t>(next[place(piece)]++)] = piece; });
  return pieces;
}

// What found no room in one sequence is cut over the greatest ones that are left.
void cut(Piece piece, const PackRule& rule, Rooms& rooms, std::vector<Piece>& placed) {
  while (piece.count > 0) {
    const std::int64_t room = rooms.greatest();
    if (room < 0) fail();
    Piece part = piece;
    part.count = static_cast<std::int32_t>(std::min<std::int64_t>(room, piece.count));
    part.sequence = rooms.take(room, rounded(part.count, rule.multiple));
    placed.push_back(part);
    piece.offset += part.count;
    piece.count -= part.count;
  }
}

// Sequences that were not needed take the pieces that were placed last, of sequences that have several: a sequence of nothing
// but padding would have no loss.
void fill_empty(std::vector<Piece>& placed, std::int32_t opened, std::int64_t most) {
  std::vector<std::int32_t> pieces(static_cast<std::size_t>(opened), 0);
  for (const Piece& piece : placed) ++pieces[static_cast<std::size_t>(piece.sequence)];
  for (auto piece = placed.rbegin(); piece != placed.rend() && opened < most; ++piece) {
    std::int32_t& there = pieces[static_cast<std::size_t>(piece->sequence)];
    if (there < 2) continue;
    --there;
    piece->sequence = opened++;
  }
}

// Best fit decreasing. Gives the pieces in the order of their placement; `sequences` becomes their number with never.
std::vector<Piece> fit(std::vector<Piece> pieces, const PackRule& rule, std::int64_t& sequences) {
  Rooms rooms(rule.length);
  std::vector<Piece> left;
  std::size_t end = 0;  // of those that are placed
  for (Piece& piece : pieces) {
    const std::int64_t size = rounded(piece.count, rule.multiple);
    const std::int64_t room = size == rule.length ? -1 : rooms.least_from(size);
    if (room >= 0) {
      piece.sequence = rooms.take(room, size);
    } else if (rule.split == Split::never || rooms.size() < sequences) {
      if (rooms.size() == std::numeric_limits<std::int32_t>::max()) fail();
      piece.sequence = rooms.open(rule.length - size);
    } else {
      left.push_back(piece);
      continue;
    }
    if (&pieces[end] != &piece) pieces[end] = piece;  // to copy it to itself would wait for its number to be stored: 5 ns
    ++end;
  }
  pieces.resize(end);
  for (const Piece& piece : left) cut(piece, rule, rooms, pieces);
  if (rule.split == Split::never) sequences = rooms.size();
  if (rooms.size() < sequences) fill_empty(pieces, rooms.size(), sequences);
  return pieces;
}

// The documents one after the other, cut where sequences end.
std::vector<Piece> chunk(const PackDocuments& documents, std::span<const std::int64_t> blocks, const PackRule& rule,
                         std::int64_t sequences) {
  std::vector<Piece> placed;
  std::int64_t end = 0;
  for_documents(documents, blocks, [&](std::int64_t document, std::int64_t tokens) {
    for (std::int64_t offset = 0; offset < tokens;) {
      const std::int64_t count = std::min(rule.length - end % rule.length, tokens - offset);
      const std::int64_t sequence = end / rule.length;
      if (sequence >= sequences) fail();
      placed.push_back({document, offset, static_cast<std::int32_t>(count), static_cast<std::int32_t>(sequence)});
      end += rounded(count, rule.multiple);
      offset += count;
    }
  });
  return placed;
}

// Pieces by their sequence, those of one in their order.
PackPlan by_sequence(const std::vector<Piece>& placed, std::int64_t sequences) {
  PackPlan made;
  made.first.assign(static_cast<std::size_t>(sequences) + 1, 0);
  for (const Piece& piece : placed) ++made.first[static_cast<std::size_t>(piece.sequence) + 1];
  for (std::size_t i = 1; i < made.first.size(); ++i) made.first[i] += made.first[i - 1];
  std::vector<std::int64_t> next(made.first.begin(), made.first.end() - 1);
  made.document.resize(placed.size());
  made.offset.resize(placed.size());
  made.count.resize(placed.size());
  for (const Piece& piece : placed) {
    const auto at = static_cast<std::size_t>(next[static_cast<std::size_t>(piece.sequence)]++);
    made.document[at] = piece.document;
    made.offset[at] = piece.offset;
    made.count[at] = piece.count;
  }
  return made;
}

constexpr std::int64_t kNoLabel = -100;

// `count` copies of a token.
void repeat_token(std::span<const std::byte> token, std::int64_t count, std::byte* out) {
  for (std::int64_t i = 0; i < count; ++i, out += token.size()) std::memcpy(out, token.data(), token.size());
}

template <class T>
void fill_labels(const std::byte* tokens, std::size_t begin, std::size_t end, std::int64_t* labels) {
  for (std::size_t i = begin; i + 1 < end; ++i) {
    T next;
    std::memcpy(&next, tokens + (i + 1) * sizeof(T), sizeof(T));
    labels[i] = static_cast<std::int64_t>(next);
  }
  if (end > begin) labels[end - 1] = kNoLabel;
}

void fill_labels(const PackFields& fields, std::size_t begin, std::size_t end) {
  const auto fill = [&](auto token) { fill_labels<decltype(token)>(fields.tokens, begin, end, fields.labels); };
  switch (fields.item) {
    case 1: return fields.is_signed ? fill(std::int8_t{}) : fill(std::uint8_t{});
    case 2: return fields.is_signed ? fill(std::int16_t{}) : fill(std::uint16_t{});
    case 4: return fields.is_signed ? fill(std::int32_t{}) : fill(std::uint32_t{});
    case 8: return fields.is_signed ? fill(std::int64_t{}) : fill(std::uint64_t{});
    default: throw std::invalid_argument("expected tokens of 1, 2, 4 or 8 bytes");
  }
}

// Tokens [begin, end) are one piece, or padding.
void fill_piece(const PackFields& fields, std::size_t begin, std::size_t end, std::int32_t segment, bool is_padding) {
  if (fields.segment != nullptr) std::fill(fields.segment + begin, fields.segment + end, segment);
  if (is_padding) {
    if (fields.position != nullptr) std::fill(fields.position + begin, fields.position + end, 0);
    if (fields.labels != nullptr) std::fill(fields.labels + begin, fields.labels + end, kNoLabel);
    return;
  }
  if (fields.position != nullptr) std::iota(fields.position + begin, fields.position + end, 0);
  if (fields.labels != nullptr) fill_labels(fields, begin, end);
}

// The places where something ends in one sequence after the other.
class Bounds {
 public:
  Bounds(const PackFields& fields, std::size_t length) : fields_(fields), length_(length) {}

  // A piece has the tokens [begin, end) of all sequences.
  void add(std::size_t begin, std::size_t end) {
    put(begin);
    put(begin +
        static_cast<std::size_t>(rounded(static_cast<std::int64_t>(end - begin), static_cast<std::int64_t>(fields_.multiple))));
  }

  // A sequence is over.
  void finish() {
    put(first_ + length_);
    if (fields_.cu_seqlens != nullptr) {
      std::int32_t* const row = fields_.cu_seqlens + first_ / length_ * (length_ + 1);
      std::copy(ends_.begin(), ends_.end(), row);
      std::fill(row + ends_.size(), row + length_ + 1, static_cast<std::int32_t>(length_));
    }
    if (fields_.max_seqlen != nullptr) {
      std::int32_t most = 0;
      for (std::size_t i = 1; i < ends_.size(); ++i) most = std::max(most, ends_[i] - ends_[i - 1]);
      fields_.max_seqlen[first_ / length_] = most;
    }
    ends_.assign(1, 0);
    first_ += length_;
  }

 private:
  void put(std::size_t place) {
    const auto end = static_cast<std::int32_t>(std::min(place - first_, length_));
    if (end > ends_.back()) ends_.push_back(end);
  }

  const PackFields& fields_;
  std::size_t length_;
  std::size_t first_ = 0;
  std::vector<std::int32_t> ends_{0};
};

}  // namespace

std::int64_t pack_edges(const PackDocuments& documents, const PackRule& rule, const Permutation* order, std::uint64_t window,
                        std::span<std::int64_t> out) {
  const std::uint64_t count = documents.blocks();
  std::vector<std::int64_t> blocks(std::min<std::uint64_t>(kAtOnce, count));
  std::int64_t before = 0;
  std::size_t group = 0;
  std::uint64_t left = 0;  // blocks of the group to come
  for (std::uint64_t low = 0; low < count; low += kAtOnce) {
    const std::span<std::int64_t> here = std::span(blocks).first(std::min<std::uint64_t>(kAtOnce, count - low));
    order == nullptr ? std::iota(here.begin(), here.end(), static_cast<std::int64_t>(low)) : order->run(low, 1, here);
    for (std::size_t i = 0; i < here.size(); ++i) {
      prefetch_bounds(documents, here, i);
      if (left == 0) {
        out[group] = (before + rule.length - 1) / rule.length + static_cast<std::int64_t>(group);
        ++group;
        left = window;
      }
      before += room_of(documents, static_cast<std::uint64_t>(here[i]), rule.multiple);
      --left;
    }
  }
  out[group] = (before + rule.length - 1) / rule.length + static_cast<std::int64_t>(group);
  return before;
}

PackPlan make_pack_plan(const PackDocuments& documents, std::span<const std::int64_t> blocks, const PackRule& rule,
                        std::int64_t sequences) {
  if (sequences < 0 || sequences > std::numeric_limits<std::int32_t>::max()) {
    throw std::invalid_argument("a group may have at most 2**31 - 1 sequences: use a smaller window");
  }
  const std::vector<Piece> placed = rule.split == Split::always ? chunk(documents, blocks, rule, sequences)
                                                                : fit(sorted_pieces(documents, blocks, rule), rule, sequences);
  return by_sequence(placed, sequences);
}

PackPlan PackPlan::in_order(std::span<const std::int64_t> order) const {
  PackPlan made;
  made.first.reserve(first.size());
  made.document.reserve(document.size());
  made.offset.reserve(document.size());
  made.count.reserve(document.size());
  made.first.push_back(0);
  for (const std::int64_t number : order) {
    const std::int64_t low = first[static_cast<std::size_t>(number)];
    const std::int64_t high = first[static_cast<std::size_t>(number) + 1];
    made.document.insert(made.document.end(), document.begin() + low, document.begin() + high);
    made.offset.insert(made.offset.end(), offset.begin() + low, offset.begin() + high);
    made.count.insert(made.count.end(), count.begin() + low, count.begin() + high);
    made.first.push_back(made.first.back() + high - low);
  }
  return made;
}

void fill_pack_fields(const PackRuns& runs, std::size_t num_tokens, const PackFields& fields) {
  if (runs.length == 0 || fields.item == 0 || fields.multiple == 0) throw std::invalid_argument("expected sequences of tokens");
  Bounds bounds(fields, runs.length);
  std::int64_t segment = fields.first_segment;
  std::size_t end = 0;
  for (std::size_t i = 0; i < runs.starts.size();) {
    const std::size_t begin = end;
    const std::int64_t document = runs.documents[i];
    if (begin % runs.length == 0) segment = fields.first_segment;
    const std::size_t stop = begin - begin % runs.length + runs.length;
    for (; i < runs.starts.size() && runs.documents[i] == document; ++i) {
      if (end == stop) break;  // the next sequence, which begins with the same document
      const auto count = static_cast<std::size_t>(runs.counts[i]);
      if (runs.counts[i] < 0 || count > stop - end || end + count > num_tokens) {
        throw std::invalid_argument("expected runs that fill whole sequences");
      }
      if (runs.starts[i] < 0) {
        const auto number = static_cast<std::size_t>(-1 - runs.starts[i]);
        if ((number + 1) * fields.item > fields.added.size())
          throw std::invalid_argument("a run is of a token that is not there");
        repeat_token(fields.added.subspan(number * fields.item, fields.item), runs.counts[i], fields.tokens + end * fields.item);
      }
      end += count;
    }
    const bool is_padding = document < 0;
    fill_piece(fields, begin, end, is_padding ? fields.padding_segment : static_cast<std::int32_t>(segment), is_padding);
    if (!is_padding) {
      bounds.add(begin, end);
      ++segment;
    }
    if (end == stop) bounds.finish();
  }
  if (end != num_tokens || end % runs.length != 0) throw std::invalid_argument("expected runs that fill whole sequences");
}

}  // namespace penstock
