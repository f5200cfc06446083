#include "core/pack.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "core/divider.h"
#include "core/file.h"

namespace penstock {
namespace {

constexpr std::size_t kAtOnce = 4096;  // blocks whose order is computed together
constexpr std::size_t kAhead = 24;     // documents whose bounds are prefetched
constexpr std::int32_t kNone = -1;
constexpr std::uint32_t kCut = ~std::uint32_t{0};  // the place of a piece that has several
constexpr std::uint64_t kMostPieces = std::numeric_limits<std::int32_t>::max();

[[noreturn]] void fail() { throw std::invalid_argument("the documents of a group do not fit its sequences"); }

[[noreturn]] void fail_falling() { throw std::invalid_argument("expected bounds of documents that rise"); }

void need_few(std::uint64_t pieces) {
  if (pieces > kMostPieces) throw std::invalid_argument("a group may have at most 2**31 - 1 pieces: use a smaller window");
}

// Runs work that reads bounds, which may be a map of a file.
template <class Work>
void reading(Work work) {
  keep_guard();
  const Fault fault = run_guarded(work);
  if (fault.happened) fail_in_memory(fault.at);
}

std::int64_t rounded(std::int64_t count, std::int64_t multiple) {
  return multiple == 1 ? count : (count + multiple - 1) / multiple * multiple;
}

// How many documents blocks have.
std::size_t count_of(const PackDocuments& documents, std::span<const std::int64_t> blocks) {
  std::size_t count = 0;
  for (const std::int64_t block : blocks) {
    count += std::min(documents.block, documents.count() - static_cast<std::uint64_t>(block) * documents.block);
  }
  return count;
}

// Calls each(document) for the documents of blocks, which may be all over the data, and coming(document) for some of them long
// before: one of each run of documents whose bounds are in a line of the cache.
template <class Coming, class Each>
void for_documents(const PackDocuments& documents, std::span<const std::int64_t> blocks, const Coming& coming, const Each& each) {
  constexpr std::uint64_t kLine = 64 / sizeof(std::int64_t);
  if (documents.block == 1) {  // a loop for every document would cost as much as the rest
    for (std::size_t number = 0; number < blocks.size(); ++number) {
      coming(static_cast<std::uint64_t>(blocks[std::min(number + kAhead, blocks.size() - 1)]));
      each(static_cast<std::uint64_t>(blocks[number]));
    }
    return;
  }
  const std::size_t ahead = std::clamp<std::size_t>(128 / documents.block, 1, kAhead);
  for (std::size_t number = 0; number < blocks.size(); ++number) {
    if (number + ahead < blocks.size()) {
      const std::uint64_t low = static_cast<std::uint64_t>(blocks[number + ahead]) * documents.block;
      const std::uint64_t high = std::min(documents.count(), low + std::min(documents.block, 16 * kLine));
      for (std::uint64_t i = low; i < high; i += kLine) coming(i);
    }
    const std::uint64_t low = static_cast<std::uint64_t>(blocks[number]) * documents.block;
    const std::uint64_t high = std::min(documents.count(), low + documents.block);
    for (std::uint64_t i = low; i < high; ++i) each(i);
  }
}

// Calls each(document, tokens). False if bounds fall somewhere; tokens are any number there.
template <class Each>
bool for_tokens(const PackDocuments& documents, std::span<const std::int64_t> blocks, const Each& each) {
  const std::int64_t* const bounds = documents.bounds.data();
  const auto extra = static_cast<std::uint64_t>(documents.extra);
  std::uint64_t all = 0;  // the highest bit is that of a number below 0
  const auto prefetch = [=](std::uint64_t document) { __builtin_prefetch(bounds + document); };
  for_documents(documents, blocks, prefetch, [&](std::uint64_t document) {
    const std::uint64_t tokens = static_cast<std::uint64_t>(bounds[document + 1]) - static_cast<std::uint64_t>(bounds[document]);
    all |= tokens;
    each(document, tokens + extra);
  });
  return static_cast<std::int64_t>(all) >= 0;
}

// A set of numbers from 1 up to below 64^Levels, as bits in levels: a word of a level says which 64 words below it are not 0.
template <std::size_t Levels>
class BitSet {
 public:
  explicit BitSet(std::size_t n) : words_(size_of(n), 0) {
    std::uint64_t* at = words_.data();
    for (std::size_t level = 0; level < Levels; ++level) {
      n = n / 64 + 1;
      levels_[level] = at;
      sizes_[level] = n;
      at += n;
    }
  }

  // Without branches: whether a word is empty is as good as random here.
  void insert(std::size_t value) {
    for (std::uint64_t* const level : levels_) {
      level[value / 64] |= std::uint64_t{1} << value % 64;
      value /= 64;
    }
  }

  void erase(std::size_t value) {
    for (std::uint64_t* const level : levels_) {
      std::uint64_t& word = level[value / 64];
      word &= ~(std::uint64_t{1} << value % 64);
      if (word != 0) return;
      value /= 64;
    }
  }

  // The least member that is not below a value, or 0.
  std::size_t find_from(std::size_t value) const {
    for (std::size_t level = 0; level < Levels && value / 64 < sizes_[level]; ++level) {
      const std::uint64_t word = levels_[level][value / 64] & ~std::uint64_t{0} << value % 64;
      if (word != 0) return descend(level, value / 64 * 64 + static_cast<std::size_t>(std::countr_zero(word)));
      value = value / 64 + 1;
    }
    return 0;
  }

  // The greatest member, or 0.
  std::size_t last() const {
    std::size_t value = 0;
    for (std::size_t level = Levels; level-- > 0;) {
      const std::uint64_t word = levels_[level][value];
      if (word == 0) return 0;
      value = value * 64 + 63 - static_cast<std::size_t>(std::countl_zero(word));
    }
    return value;
  }

 private:
  static std::size_t size_of(std::size_t n) {
    std::size_t size = 0;
    for (std::size_t level = 0; level < Levels; ++level) size += n = n / 64 + 1;
    return size;
  }

  std::size_t descend(std::size_t level, std::size_t value) const {
    while (level-- > 0) value = value * 64 + static_cast<std::size_t>(std::countr_zero(levels_[level][value]));
    return value;
  }

  PooledArray<std::uint64_t> words_;
  std::array<std::uint64_t*, Levels> levels_;
  std::array<std::size_t, Levels> sizes_;
};

// A part of a piece that found no room in one sequence, in units.
struct Cut {
  std::uint32_t piece;
  std::uint32_t offset;
  std::uint32_t size;
  std::uint32_t place;  // its sequence; later, its place among all pieces
};

void write_cuts(std::span<const Cut> cuts, std::uint32_t number, std::uint64_t multiple, std::uint64_t document,
                std::uint64_t offset, std::uint64_t tokens, PackPiece* out) {
  auto cut = std::lower_bound(cuts.begin(), cuts.end(), number, [](const Cut& one, std::uint32_t k) { return one.piece < k; });
  for (; cut != cuts.end() && cut->piece == number; ++cut) {
    const std::uint64_t low = cut->offset * multiple;
    out[cut->place] = PackPiece::of(document, offset + low, std::min(cut->size * multiple, tokens - low));
  }
}

// Best fit decreasing. All that it needs to know is how many pieces there are of each size: they have numbers by falling size.
template <std::size_t Levels>
class BestFit {
 public:
  // At most `most` sequences of `length` units. places[k] becomes the sequence of piece k, or kCut.
  BestFit(std::size_t length, std::size_t most, std::span<std::uint32_t> places)
      : held(most), length_(length), most_(most), places_(places), head_(length, kNone), next_(most), rooms_(length) {}

  // Pieces of one size, `count` of them from number `k` on. Sizes fall from call to call.
  void add(std::size_t size, std::size_t k, std::size_t count) {
    const std::size_t end = k + count;
    std::size_t room = size < length_ ? rooms_.find_from(size) : 0;
    while (k < end && room != 0) {
      // No other sequence has room for the size and less of it. So this one takes pieces until it has none for another.
      const std::int32_t sequence = head_[room];
      const std::size_t number = room < 2 * size ? 1 : std::min(end - k, room / size);
      const std::int32_t after = pop(sequence, room);
      held[static_cast<std::size_t>(sequence)] += static_cast<std::uint32_t>(number);
      k = put(sequence, k, number);
      push(sequence, room - number * size);
      if (after == kNone) room = rooms_.find_from(room + 1);
    }
    while (k < end && opened < most_) {
      const std::size_t number = length_ < 2 * size ? 1 : std::min(end - k, length_ / size);
      held[opened] = static_cast<std::uint32_t>(number);
      const auto sequence = static_cast<std::int32_t>(opened++);
      k = put(sequence, k, number);
      push(sequence, length_ - number * size);
    }
    for (; k < end; ++k) {
      places_[k] = kCut;
      left_.emplace_back(static_cast<std::uint32_t>(k), static_cast<std::uint32_t>(size));
    }
  }

  // What found no room in one sequence is cut over the greatest ones that are left.
  void cut() {
    for (const auto& [piece, size] : left_) {
      for (std::uint32_t done = 0; done < size;) {
        const std::size_t room = rooms_.last();
        if (room == 0) fail();
        const auto taken = static_cast<std::uint32_t>(std::min<std::size_t>(room, size - done));
        const std::int32_t sequence = head_[room];
        pop(sequence, room);
        push(sequence, room - taken);
        ++held[static_cast<std::size_t>(sequence)];
        cuts.push_back({piece, done, taken, static_cast<std::uint32_t>(sequence)});
        done += taken;
      }
    }
  }

  // Sequences that were not needed take the pieces that were placed last, of sequences that have several: a sequence of nothing
  // but padding would have no loss.
  void fill_empty() {
    const auto move = [&](std::uint32_t& sequence) {
      if (sequence == kCut || held[sequence] < 2) return;
      --held[sequence];
      held[opened] = 1;
      sequence = static_cast<std::uint32_t>(opened++);
    };
    for (std::size_t i = cuts.size(); i > 0 && opened < most_; --i) move(cuts[i - 1].place);
    for (std::size_t k = places_.size(); k > 0 && opened < most_; --k) move(places_[k - 1]);
    while (opened < most_) held[opened++] = 0;
  }

  std::size_t opened = 0;
  PooledArray<std::uint32_t> held;  // pieces of every sequence
  std::vector<Cut> cuts;

 private:
  std::size_t put(std::int32_t sequence, std::size_t k, std::size_t number) {
    for (const std::size_t end = k + number; k < end; ++k) places_[k] = static_cast<std::uint32_t>(sequence);
    return k;
  }

  // Takes the first sequence with that room off the list; gives the next one.
  std::int32_t pop(std::int32_t sequence, std::size_t room) {
    const std::int32_t after = head_[room] = next_[static_cast<std::size_t>(sequence)];
    if (after == kNone) rooms_.erase(room);
    return after;
  }

  // Of several sequences with as much room, the one that got it last comes first.
  void push(std::int32_t sequence, std::size_t room) {
    if (room == 0) return;
    next_[static_cast<std::size_t>(sequence)] = head_[room];
    head_[room] = sequence;
    rooms_.insert(room);
  }

  std::size_t length_;
  std::size_t most_;
  std::span<std::uint32_t> places_;
  PooledArray<std::int32_t> head_;  // by room
  PooledArray<std::int32_t> next_;  // by sequence
  BitSet<Levels> rooms_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> left_;  // numbers and sizes of pieces
};

// How documents are cut into pieces: only if they are longer than a sequence, into whole sequences and a rest.
class Cutter {
 public:
  explicit Cutter(const PackRule& rule)
      : rule_(rule),
        length_(static_cast<std::uint64_t>(rule.length)),
        multiple_(static_cast<std::uint64_t>(rule.multiple)),
        by_length_(length_),
        by_multiple_(multiple_) {}

  std::uint64_t multiple() const { return multiple_; }
  // Room is in units of `multiple` tokens.
  std::size_t units(std::uint64_t tokens) const {
    return multiple_ == 1 ? tokens : by_multiple_.quotient(tokens + multiple_ - 1);
  }
  // Units of a sequence.
  std::size_t most() const { return units(length_); }

  // Calls full(tokens of all pieces that are a whole sequence) if there are any, and rest(offset, tokens) if something is left.
  template <class Full, class Rest>
  void cut(std::uint64_t tokens, const Full& full, const Rest& rest) const {
    if (tokens - 1 < length_ - 1) [[likely]]
      return rest(std::uint64_t{0}, tokens);
    if (tokens == 0) return;
    if (rule_.split == Split::never && tokens > length_) {
      if (!rule_.drops) full(length_);
      return;
    }
    const std::uint64_t end = by_length_.quotient(tokens) * length_;
    full(end);
    if (tokens > end) rest(end, tokens - end);
  }

  std::uint64_t length() const { return length_; }

 private:
  PackRule rule_;
  std::uint64_t length_;
  std::uint64_t multiple_;
  Divider by_length_;
  Divider by_multiple_;
};

// The documents of a group, looked at once: their bounds are all over the memory, or a map of a file.
struct Measured {
  PooledArray<std::uint64_t> tokens;  // of every document
  PooledArray<std::uint32_t> counts;  // how many pieces there are of every size, in units
};

Measured measure(const PackDocuments& documents, std::span<const std::int64_t> blocks, const Cutter& cutter) {
  Measured made{PooledArray<std::uint64_t>(count_of(documents, blocks)), PooledArray<std::uint32_t>(cutter.most() + 1, 0)};
  std::uint64_t full_tokens = 0;
  std::uint64_t rests = 0;
  bool is_rising = true;
  reading([&, cutter] {
    std::uint64_t* kept = made.tokens.data();
    std::uint32_t* const counts = made.counts.data();
    const auto full = [&](std::uint64_t tokens) { full_tokens += tokens; };
    const auto rest = [&](std::uint64_t, std::uint64_t tokens) {
      ++counts[cutter.units(tokens)];
      ++rests;
    };
    is_rising = for_tokens(documents, blocks, [&](std::uint64_t, std::uint64_t tokens) {
      *kept++ = tokens;
      cutter.cut(tokens, full, rest);
    });
  });
  if (!is_rising) fail_falling();
  need_few(full_tokens / cutter.length() + rests);
  made.counts[cutter.most()] += static_cast<std::uint32_t>(full_tokens / cutter.length());
  return made;
}

// Sequences come in the order of the permutation with that key; without one, in their own. Gives the first piece of each and
// behind the last. held[b], the pieces of sequence b, becomes the place of its first piece.
PooledArray<std::uint32_t> put_in_order(std::span<std::uint32_t> held, std::optional<std::uint64_t> key) {
  PooledArray<std::uint32_t> first(held.size() + 1);
  std::uint32_t before = 0;
  const auto next = [&](std::size_t i, std::size_t sequence) {
    first[i] = before;
    before += std::exchange(held[sequence], before);
  };
  if (!key) {
    for (std::size_t i = 0; i < held.size(); ++i) next(i, i);
  } else {
    const Permutation order(held.size(), *key);
    for (std::size_t i = 0; i < held.size(); ++i) next(i, order.forward(i));
  }
  first[held.size()] = before;
  return first;
}

// Every piece to its place. `next` has the number of the next piece of each size.
PooledArray<PackPiece> write_pieces(const PackDocuments& documents, std::span<const std::int64_t> blocks, const Cutter& cutter,
                                    std::span<const std::uint64_t> tokens, std::span<std::uint32_t> next,
                                    std::span<const std::uint32_t> places, std::span<const Cut> cuts, std::size_t count) {
  PooledArray<PackPiece> made(count);
  PackPiece* const pieces = made.data();
  std::uint64_t document = 0;
  const auto rest = [&](std::uint64_t offset, std::uint64_t size) {
    const std::uint32_t number = next[cutter.units(size)]++;
    if (const std::uint32_t place = places[number]; place != kCut) [[likely]] {
      pieces[place] = PackPiece::of(document, offset, size);
    } else {
      write_cuts(cuts, number, cutter.multiple(), document, offset, size, pieces);
    }
  };
  const auto full = [&](std::uint64_t end) {
    for (std::uint64_t offset = 0; offset < end; offset += cutter.length()) rest(offset, cutter.length());
  };
  const std::uint64_t* size = tokens.data();
  for_documents(
      documents, blocks, [](std::uint64_t) {},
      [&](std::uint64_t one) {
        document = one;
        cutter.cut(*size++, full, rest);
      });
  return made;
}

template <std::size_t Levels>
PackPlan fit(const PackDocuments& documents, std::span<const std::int64_t> blocks, const PackRule& rule, std::size_t most,
             std::optional<std::uint64_t> key) {
  const Cutter cutter(rule);
  const Measured measured = measure(documents, blocks, cutter);
  const PooledArray<std::uint32_t>& counts = measured.counts;
  const std::size_t total = std::accumulate(counts.begin() + 1, counts.end(), std::size_t{0});
  const bool is_whole = rule.split == Split::never;
  const PooledArray<std::uint32_t> places(total);
  BestFit<Levels> placed(counts.size() - 1, is_whole ? total : most, places);
  std::size_t number = 0;  // of the next piece; counts becomes the number of the first piece of each size
  for (std::size_t size = counts.size() - 1; size > 0; --size) {
    const std::size_t count = std::exchange(counts[size], static_cast<std::uint32_t>(number));
    if (count == 0) continue;
    placed.add(size, number, count);
    number += count;
  }
  placed.cut();
  if (!is_whole) placed.fill_empty();
  PooledArray<std::uint32_t> first = put_in_order(std::span(placed.held.data(), placed.opened), key);
  for (std::uint32_t& place : places) {
    if (place != kCut) place = placed.held[place]++;
  }
  for (Cut& cut : placed.cuts) cut.place = placed.held[cut.place]++;
  const std::size_t count = first[placed.opened];
  return {std::move(first), write_pieces(documents, blocks, cutter, measured.tokens, counts, places, placed.cuts, count)};
}

// The documents one after the other, cut where sequences end.
PackPlan chunk(const PackDocuments& documents, std::span<const std::int64_t> blocks, const PackRule& rule, std::size_t most,
               std::optional<std::uint64_t> key) {
  const auto length = static_cast<std::uint64_t>(rule.length);
  const std::size_t limit = count_of(documents, blocks) + most;
  need_few(limit);
  const PooledArray<PackPiece> pieces(limit);
  const PooledArray<std::uint32_t> sequences(limit);
  const PooledArray<std::uint32_t> held(most, 0);
  std::size_t total = 0;
  bool is_rising = true;
  reading([&] {
    std::uint64_t left = length;
    std::size_t sequence = 0;
    is_rising = for_tokens(documents, blocks, [&](std::uint64_t document, std::uint64_t tokens) {
      if (static_cast<std::int64_t>(tokens) < 0) fail_falling();
      for (std::uint64_t offset = 0; offset < tokens;) {
        const std::uint64_t count = std::min(left, tokens - offset);
        if (sequence >= most) fail();
        ++held[sequence];
        sequences[total] = static_cast<std::uint32_t>(sequence);
        pieces[total++] = PackPiece::of(document, offset, count);
        offset += count;
        left -= static_cast<std::uint64_t>(rounded(static_cast<std::int64_t>(count), rule.multiple));
        if (left == 0) {
          left = length;
          ++sequence;
        }
      }
    });
  });
  if (!is_rising) fail_falling();
  PooledArray<std::uint32_t> first = put_in_order(held, key);
  PooledArray<PackPiece> made(total);
  for (std::size_t i = 0; i < total; ++i) made[held[sequences[i]]++] = pieces[i];
  return {std::move(first), std::move(made)};
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

void pack_block_rooms(const PackDocuments& documents, const PackRule& rule, std::span<std::int64_t> out) {
  const Cutter cutter(rule);
  bool is_rising = true;
  reading([&] {
    const std::uint64_t count = documents.count();
    for (std::size_t block = 0; block < out.size(); ++block) {
      const std::uint64_t low = block * documents.block;
      const std::uint64_t high = std::min(count, low + documents.block);
      is_rising &= documents.bounds[high] >= documents.bounds[low];
      auto room = static_cast<std::uint64_t>(documents.bounds[high]) - static_cast<std::uint64_t>(documents.bounds[low]) +
                  (high - low) * static_cast<std::uint64_t>(documents.extra);
      out[block] = static_cast<std::int64_t>(room);
      if (rule.multiple == 1) continue;
      room = 0;
      const auto number = static_cast<std::int64_t>(block);
      is_rising &= for_tokens(documents, {&number, 1}, [&](std::uint64_t, std::uint64_t one) { room += cutter.units(one); });
      out[block] = static_cast<std::int64_t>(room * cutter.multiple());
    }
  });
  if (!is_rising) fail_falling();
}

void pack_edges(std::span<const std::int64_t> rooms, std::int64_t length, const Permutation* order, std::uint64_t window,
                std::span<std::int64_t> out) {
  const Divider by_length(static_cast<std::uint64_t>(length));
  const auto edge = [&](std::int64_t before, std::size_t group) {
    return static_cast<std::int64_t>(by_length.quotient(static_cast<std::uint64_t>(before + length - 1)) + group);
  };
  std::vector<std::int64_t> blocks(std::min(kAtOnce, rooms.size()));
  std::int64_t before = 0;
  std::size_t group = 0;
  std::uint64_t left = 0;  // blocks of the group to come
  for (std::size_t low = 0; low < rooms.size(); low += kAtOnce) {
    const std::span<std::int64_t> here = std::span(blocks).first(std::min(kAtOnce, rooms.size() - low));
    order == nullptr ? std::iota(here.begin(), here.end(), static_cast<std::int64_t>(low)) : order->run(low, 1, here);
    for (const std::int64_t block : here) {
      if (left == 0) {
        out[group] = edge(before, group);
        ++group;
        left = window;
      }
      before += rooms[static_cast<std::size_t>(block)];
      --left;
    }
  }
  out[group] = edge(before, group);
}

PackPlan make_pack_plan(const PackDocuments& documents, std::span<const std::int64_t> blocks, const PackRule& rule,
                        std::int64_t sequences, std::optional<std::uint64_t> key) {
  if (sequences < 0 || sequences > std::numeric_limits<std::int32_t>::max()) {
    throw std::invalid_argument("a group may have at most 2**31 - 1 sequences: use a smaller window");
  }
  if (documents.count() > PackPiece::kMaxDocuments) throw std::invalid_argument("expected at most 2**39 documents");
  const auto most = static_cast<std::size_t>(sequences);
  const std::int64_t units = rule.length / rule.multiple;
  if (rule.split == Split::always) return chunk(documents, blocks, rule, most, key);
  if (units <= 1 << 12) return fit<2>(documents, blocks, rule, most, key);
  if (units <= 1 << 18) return fit<3>(documents, blocks, rule, most, key);
  return fit<4>(documents, blocks, rule, most, key);
}

std::size_t PackPlan::count(std::span<const std::int64_t> sequences, std::span<std::int64_t> out) const {
  std::size_t total = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const auto sequence = static_cast<std::size_t>(sequences[i]);
    out[i] = first_[sequence + 1] - first_[sequence];
    total += first_[sequence + 1] - first_[sequence];
  }
  return total;
}

bool PackPlan::has_room(std::span<const std::int64_t> sequences, std::span<const std::int64_t> starts, std::size_t size) const {
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const auto sequence = static_cast<std::size_t>(sequences[i]);
    const std::uint64_t pieces = first_[sequence + 1] - first_[sequence];
    if (starts[i] < 0 || static_cast<std::uint64_t>(starts[i]) + pieces > size) return false;
  }
  return true;
}

void PackPlan::write(std::span<const std::int64_t> sequences, std::span<const std::int64_t> starts, std::int64_t* document,
                     std::int64_t* offset, std::int64_t* count) const {
  for (std::size_t i = 0; i < sequences.size();) {
    // Sequences that follow one another, here and there, are one run of pieces.
    const auto low = static_cast<std::size_t>(sequences[i]);
    const std::int64_t shift = starts[i] - first_[low];
    std::size_t high = low;
    for (; i < sequences.size() && static_cast<std::size_t>(sequences[i]) == high && starts[i] - first_[high] == shift; ++i)
      ++high;
    for (std::size_t k = first_[low]; k < first_[high]; ++k) {
      const auto at = static_cast<std::size_t>(static_cast<std::int64_t>(k) + shift);
      document[at] = pieces_[k].document();
      offset[at] = pieces_[k].offset();
      count[at] = pieces_[k].count();
    }
  }
}

std::size_t most_pack_runs(const PackAdded& added, std::size_t pieces, std::size_t sequences) {
  const bool pads = added.multiple > 1 || !added.banned.empty();
  return pieces * (1 + static_cast<std::size_t>(added.before + added.behind) + (pads ? 1 : 0)) + sequences;
}

std::size_t make_pack_runs(const PackedPieces& pieces, std::span<const std::int64_t> bounds, std::int64_t length,
                           const PackAdded& added, const PackRunsOut& out) {
  std::size_t made = 0;
  const auto add = [&](std::int64_t start, std::int64_t count, std::int64_t document, std::int64_t inside) {
    if (count == 0) return;
    out.starts[made] = start;
    out.counts[made] = count;
    out.documents[made] = document;
    out.inside[made] = inside;
    ++made;
  };
  const auto prefetch = [&](std::size_t k) {  // documents are anywhere in the data
    if (k + kAhead < pieces.document.size()) __builtin_prefetch(&bounds[static_cast<std::size_t>(pieces.document[k + kAhead])]);
  };
  const auto add_piece = [&](std::int64_t document, std::int64_t low, std::int64_t count) {
    const std::int64_t begin = bounds[static_cast<std::size_t>(document)];
    const std::int64_t tokens = bounds[static_cast<std::size_t>(document) + 1] - begin;
    const std::int64_t high = low + count;
    if (tokens < 0 || high > added.before + tokens + added.behind) return false;
    const std::int64_t first = std::clamp(added.before, low, high);  // where the data begins
    const std::int64_t last = std::clamp(added.before + tokens, low, high);
    add(kBeforeRun, first - low, document, 0);
    add(begin + first - added.before, last - first, document, first - added.before);
    add(kBehindRun, high - last, document, last - added.before);
    return true;
  };
  const std::size_t sequences = pieces.first.size() - 1;
  bool is_good = true;
  reading([&] {
    std::size_t k = 0;
    for (std::size_t sequence = 0; is_good && sequence < sequences; ++sequence) {
      out.first[sequence] = static_cast<std::int64_t>(made);
      std::int64_t left = length;
      for (const auto end = static_cast<std::size_t>(pieces.first[sequence + 1]); is_good && k < end; ++k) {
        prefetch(k);
        const std::int64_t room = rounded(pieces.count[k], added.multiple);
        left -= room;
        if (!added.banned.empty() && std::binary_search(added.banned.begin(), added.banned.end(), pieces.document[k])) {
          add(kPaddingRun, room, -1, -1);
        } else {
          is_good = add_piece(pieces.document[k], pieces.offset[k], pieces.count[k]);
          add(kPaddingRun, room - pieces.count[k], -1, -1);
        }
      }
      is_good &= left >= 0;
      if (is_good) add(kPaddingRun, left, -1, -1);
    }
  });
  if (!is_good) throw std::invalid_argument("expected pieces that are within their documents and fit their sequences");
  out.first[sequences] = static_cast<std::int64_t>(made);
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
