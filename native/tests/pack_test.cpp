#include "core/pack.h"

#include <limits>
#include <map>
#include <numeric>

#include "check.h"
#include "core/seed.h"

using namespace penstock;

namespace {

using Ids = std::vector<std::int64_t>;

Ids bounds_of(const Ids& lengths) {
  Ids bounds{0};
  for (const std::int64_t length : lengths) bounds.push_back(bounds.back() + length);
  return bounds;
}

std::int64_t rounded(std::int64_t count, std::int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

struct Placed {
  std::int64_t document, offset, count;
  auto operator<=>(const Placed&) const = default;
};
using Sequences = std::vector<std::vector<Placed>>;

Sequences sequences_of(const PackPlan& plan) {
  Ids numbers(plan.sequences());
  std::iota(numbers.begin(), numbers.end(), 0);
  Ids counts(numbers.size());
  const std::size_t total = plan.count(numbers, counts);
  check_equal(total, plan.pieces(), "pieces");
  Ids starts(numbers.size());
  std::exclusive_scan(counts.begin(), counts.end(), starts.begin(), std::int64_t{0});
  Ids document(total);
  Ids offset(total);
  Ids count(total);
  check(plan.has_room(numbers, starts, total), "room for all pieces");
  plan.write(numbers, starts, document.data(), offset.data(), count.data());
  Sequences made(numbers.size());
  for (std::size_t i = 0; i < made.size(); ++i) {
    for (auto k = static_cast<std::size_t>(starts[i]); k < static_cast<std::size_t>(starts[i] + counts[i]); ++k) {
      made[i].push_back({document[k], offset[k], count[k]});
    }
  }
  return made;
}

// Best fit decreasing with loops over all sequences. `turn` says when a sequence got the room that it has.
Sequences naive_fit(const Ids& lengths, const PackRule& rule, std::int64_t most) {
  std::vector<Placed> pieces;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    for (std::int64_t offset = 0; offset < lengths[i]; offset += rule.length) {
      pieces.push_back({static_cast<std::int64_t>(i), offset, std::min(rule.length, lengths[i] - offset)});
    }
  }
  std::stable_sort(pieces.begin(), pieces.end(), [&](const Placed& one, const Placed& other) {
    return rounded(one.count, rule.multiple) > rounded(other.count, rule.multiple);
  });
  Sequences made;
  Ids room;
  Ids turn;
  std::vector<std::pair<std::size_t, Placed>> history;
  std::int64_t now = 0;
  const auto put = [&](std::size_t where, const Placed& piece) {
    made[where].push_back(piece);
    history.emplace_back(where, piece);
    room[where] -= rounded(piece.count, rule.multiple);
    turn[where] = now++;
  };
  std::vector<Placed> left;
  for (const Placed& piece : pieces) {
    std::size_t best = made.size();
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (room[i] < rounded(piece.count, rule.multiple)) continue;
      if (best == made.size() || room[i] < room[best] || (room[i] == room[best] && turn[i] > turn[best])) best = i;
    }
    if (best == made.size()) {
      if (static_cast<std::int64_t>(made.size()) == most) {
        left.push_back(piece);
        continue;
      }
      made.emplace_back();
      room.push_back(rule.length);
      turn.push_back(0);
    }
    put(best, piece);
  }
  for (Placed piece : left) {
    while (piece.count > 0) {
      std::size_t best = 0;
      for (std::size_t i = 1; i < made.size(); ++i) {
        if (room[i] > room[best] || (room[i] == room[best] && turn[i] > turn[best])) best = i;
      }
      Placed part = piece;
      part.count = std::min(room[best], piece.count);
      put(best, part);
      piece.offset += part.count;
      piece.count -= part.count;
    }
  }
  for (std::size_t i = history.size(); i-- > 0 && static_cast<std::int64_t>(made.size()) < most;) {
    auto& [where, piece] = history[i];
    if (made[where].size() < 2) continue;
    made[where].pop_back();
    made.push_back({piece});
  }
  made.resize(static_cast<std::size_t>(std::max<std::int64_t>(most, static_cast<std::int64_t>(made.size()))));
  return made;
}

void check_covers(const Sequences& sequences, const Ids& lengths, const PackRule& rule, const std::string& name) {
  std::map<std::int64_t, std::vector<Placed>> found;
  for (const std::vector<Placed>& one : sequences) {
    std::int64_t used = 0;
    for (const Placed& piece : one) {
      check(piece.count > 0, name + ": a piece has tokens");
      used += rounded(piece.count, rule.multiple);
      found[piece.document].push_back(piece);
    }
    check(used <= rule.length, name + ": a sequence is not too long");
  }
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    std::vector<Placed>& pieces = found[static_cast<std::int64_t>(i)];
    std::sort(pieces.begin(), pieces.end());
    std::int64_t end = 0;
    for (const Placed& piece : pieces) {
      check_equal(piece.offset, end, name + ": begin of a piece");
      end += piece.count;
    }
    check_equal(end, lengths[i], name + ": tokens of a document");
  }
}

Ids random_lengths(std::size_t count, std::uint64_t most, std::uint64_t key) {
  Ids lengths(count);
  for (std::size_t i = 0; i < count; ++i) lengths[i] = static_cast<std::int64_t>(absorb(key, i) % (most + 1));
  return lengths;
}

void plans_are_those_of_loops() {
  std::uint64_t key = 1;
  for (const std::int64_t length : {1, 2, 7, 64, 100, 4095, 4096, 5000, 1 << 18, 300'000}) {
    for (const std::int64_t multiple : {1, 2, 5}) {
      if (length % multiple != 0) continue;
      for (const std::uint64_t most :
           {std::uint64_t{1}, static_cast<std::uint64_t>(length), static_cast<std::uint64_t>(3 * length)}) {
        Ids lengths = random_lengths(150, most, ++key);
        const Ids bounds = bounds_of(lengths);
        const Ids all{0};
        std::int64_t size = 0;
        for (const std::int64_t one : lengths) size += rounded(one, multiple);
        const PackDocuments documents{bounds, lengths.size(), 0};
        for (const std::int64_t slack : {0, 1, 3}) {
          const std::int64_t sequences = (size + length - 1) / length + slack;
          const std::string name = say("length ", length, " multiple ", multiple, " documents up to ", most, " slack ", slack);
          const PackRule fit{length, multiple, Split::fit, false};
          const Sequences found = sequences_of(make_pack_plan(documents, all, fit, sequences));
          check(found == naive_fit(lengths, fit, sequences), name);
          check_covers(found, lengths, fit, name);
          const PackRule always{length, multiple, Split::always, false};
          check_covers(sequences_of(make_pack_plan(documents, all, always, sequences)), lengths, always, name + " always");
        }
      }
    }
  }
}

void whole_documents_are_not_cut() {
  const Ids lengths{5, 11, 0, 10, 3, 7};
  const Ids bounds = bounds_of(lengths);
  const PackDocuments documents{bounds, 3, 0};
  const Ids blocks{1, 0};
  Sequences found = sequences_of(make_pack_plan(documents, blocks, {10, 1, Split::never, true}, 0));
  check(found == Sequences{{{3, 0, 10}}, {{5, 0, 7}, {4, 0, 3}}, {{0, 0, 5}}}, "longer ones are left out");
  found = sequences_of(make_pack_plan(documents, blocks, {10, 1, Split::never, false}, 0));
  check(found == Sequences{{{3, 0, 10}}, {{1, 0, 10}}, {{5, 0, 7}, {4, 0, 3}}, {{0, 0, 5}}}, "longer ones are cut off");
}

void no_sequence_stays_empty_where_another_has_two_pieces() {
  const Ids bounds = bounds_of({4, 3, 2, 1});
  const Ids all{0};
  const Sequences found = sequences_of(make_pack_plan({bounds, 4, 0}, all, {10, 1, Split::fit, false}, 3));
  check(found == Sequences{{{0, 0, 4}, {1, 0, 3}}, {{3, 0, 1}}, {{2, 0, 2}}}, "the pieces placed last move");
}

void sequences_come_in_the_order_of_a_permutation() {
  const Ids bounds = bounds_of(random_lengths(200'000, 30, 5));
  const Ids all{0};
  for (const std::int64_t sequences : {60'000, 100'000}) {  // with a table, and without
    for (const Split split : {Split::fit, Split::always}) {
      const PackDocuments documents{bounds, bounds.size() - 1, 0};
      const PackRule rule{64, 1, split, false};
      const Sequences before = sequences_of(make_pack_plan(documents, all, rule, sequences));
      const Sequences after = sequences_of(make_pack_plan(documents, all, rule, sequences, 77));
      const Permutation order(static_cast<std::uint64_t>(sequences), 77);
      bool is_same = after.size() == before.size();
      for (std::size_t i = 0; i < after.size(); ++i) is_same &= after[i] == before[order.forward(i)];
      check(is_same, "sequences in another order");
    }
  }
}

void any_sequences_are_written_anywhere() {
  const Ids bounds = bounds_of({4, 3, 2, 1, 9, 9});
  const Ids all{0};
  const PackPlan plan = make_pack_plan({bounds, 6, 0}, all, {10, 1, Split::fit, false}, 4);
  const Sequences whole = sequences_of(plan);
  const Ids numbers{2, 3, 0, 1, 1};
  Ids counts(5);
  const std::size_t total = plan.count(numbers, counts);
  Ids starts(5);
  for (std::size_t i = 5, end = total; i-- > 0;) {  // the last first
    starts[4 - i] = static_cast<std::int64_t>(end -= static_cast<std::size_t>(counts[4 - i]));
  }
  Ids document(total, -1);
  Ids offset(total, -1);
  Ids count(total, -1);
  check(plan.has_room(numbers, starts, total), "room for all pieces");
  check(!plan.has_room(numbers, starts, total - 1), "no room for all pieces");
  plan.write(numbers, starts, document.data(), offset.data(), count.data());
  for (std::size_t i = 0; i < 5; ++i) {
    std::vector<Placed> found;
    for (std::int64_t k = starts[i]; k < starts[i] + counts[i]; ++k) {
      const auto at = static_cast<std::size_t>(k);
      found.push_back({document[at], offset[at], count[at]});
    }
    check(found == whole[static_cast<std::size_t>(numbers[i])], "a sequence by number");
  }
}

void what_is_added_counts() {
  const Ids bounds = bounds_of({0, 3, 0});
  const Ids all{0};
  const PackDocuments documents{bounds, 3, 2};
  Ids rooms(1);
  pack_block_rooms(documents, {4, 1, Split::fit, false}, rooms);
  check_equal(rooms, {9}, "room");
  pack_block_rooms(documents, {4, 4, Split::fit, false}, rooms);
  check_equal(rooms, {16}, "rounded room");
  const Sequences found = sequences_of(make_pack_plan(documents, all, {4, 1, Split::always, false}, 3));
  check(found == Sequences{{{0, 0, 2}, {1, 0, 2}}, {{1, 2, 3}, {2, 0, 1}}, {{2, 1, 1}}}, "documents with two more tokens");
}

void edges_leave_room_for_every_group() {
  const Ids lengths = random_lengths(100'000, 50, 9);
  const Ids bounds = bounds_of(lengths);
  for (const std::uint64_t block : {1, 7, 1000}) {
    const PackDocuments documents{bounds, block, 1};
    const std::uint64_t blocks = documents.blocks();
    const Permutation order(blocks, 77);
    for (const std::int64_t multiple : {1, 4}) {
      const PackRule rule{64, multiple, Split::fit, false};
      for (const std::uint64_t window : {std::uint64_t{1}, std::uint64_t{30}, blocks}) {
        const std::size_t groups = (blocks + window - 1) / window;
        Ids edges(groups + 1);
        Ids rooms(blocks);
        pack_block_rooms(documents, rule, rooms);
        pack_edges(rooms, 64, &order, window, edges);
        std::int64_t before = 0;
        for (std::size_t group = 0; group <= groups; ++group) {
          check_equal(edges[group], (before + 63) / 64 + static_cast<std::int64_t>(group), "edge");
          for (std::uint64_t j = group * window; group < groups && j < std::min(blocks, (group + 1) * window); ++j) {
            const std::uint64_t low = order.forward(j) * block;
            for (std::uint64_t i = low; i < std::min<std::uint64_t>(100'000, low + block); ++i) {
              before += rounded(lengths[i] + 1, multiple);
            }
          }
        }
        check_equal(std::accumulate(rooms.begin(), rooms.end(), std::int64_t{0}), before, "room");
        Ids plain(groups + 1);
        pack_edges(rooms, 64, nullptr, window, plain);
        check_equal(plain.back(), edges.back(), "sequences in any order");
      }
    }
  }
  Ids none(1, 5);
  pack_edges({}, 10, nullptr, 3, none);
  check_equal(none, {0});
}

void what_does_not_fit_is_refused() {
  const Ids bounds = bounds_of({5, 6});
  const Ids all{0};
  const Ids falling{0, 5, 3};
  check_throws<std::invalid_argument>([&] { make_pack_plan({bounds, 2, 0}, all, {10, 1, Split::fit, false}, 1); });
  check_throws<std::invalid_argument>([&] { make_pack_plan({bounds, 2, 0}, all, {10, 1, Split::always, false}, 1); });
  check_throws<std::invalid_argument>([&] { make_pack_plan({bounds, 2, 0}, all, {10, 1, Split::fit, false}, -1); });
  for (const std::int64_t extra : {0, 3}) {
    const PackDocuments documents{falling, 2, extra};
    check_throws<std::invalid_argument>([&] { make_pack_plan(documents, all, {10, 1, Split::fit, false}, 3); });
    check_throws<std::invalid_argument>([&] { make_pack_plan(documents, all, {10, 1, Split::always, false}, 3); });
    Ids rooms(1);
    check_throws<std::invalid_argument>([&] { pack_block_rooms(documents, {10, 2, Split::fit, false}, rooms); });
  }
  const Ids giant{0, std::numeric_limits<std::int64_t>::max()};
  check_throws<std::invalid_argument>([&] { make_pack_plan({giant, 1, 0}, all, {1, 1, Split::fit, false}, 3); });
  check_throws<std::invalid_argument>([&] { make_pack_plan({giant, 1, 0}, all, {1, 1, Split::always, false}, 3); });
}

void runs_follow_from_pieces() {
  // Document 0 has 3 tokens from 10 on, document 1 has 2; each has one more before and one behind. Pieces take room by 2.
  const Ids bounds{10, 13, 15};
  const Ids first{0, 2, 2, 3};
  const Ids document{0, 1, 0};
  const Ids offset{0, 0, 4};
  const Ids count{4, 4, 1};
  const Ids banned{1};
  for (const bool bans : {false, true}) {
    const PackAdded added{1, 1, 2, bans ? std::span(banned) : std::span<const std::int64_t>{}};
    const std::size_t most = most_pack_runs(added, 3, 3);
    Ids out_first(4);
    Ids starts(most);
    Ids counts(most);
    Ids documents(most);
    Ids inside(most);
    const std::size_t made = make_pack_runs({first, document, offset, count}, bounds, 10, added,
                                            {out_first.data(), starts.data(), counts.data(), documents.data(), inside.data()});
    for (Ids* const column : {&starts, &counts, &documents, &inside}) column->resize(made);
    if (bans) {
      check_equal(out_first, {0, 4, 5, 8}, "first run");
      check_equal(starts, {-2, 10, -1, -1, -1, -3, -1, -1}, "starts");
      check_equal(counts, {1, 3, 4, 2, 10, 1, 1, 8}, "counts");
      check_equal(documents, {0, 0, -1, -1, -1, 0, -1, -1}, "documents");
      check_equal(inside, {0, 0, -1, -1, -1, 3, -1, -1}, "places in documents");
    } else {
      check_equal(out_first, {0, 6, 7, 10}, "first run");
      check_equal(starts, {-2, 10, -2, 13, -3, -1, -1, -3, -1, -1}, "starts");
      check_equal(counts, {1, 3, 1, 2, 1, 2, 10, 1, 1, 8}, "counts");
      check_equal(documents, {0, 0, 1, 1, 1, -1, -1, 0, -1, -1}, "documents");
      check_equal(inside, {0, 0, 0, 0, 2, -1, -1, 3, -1, -1}, "places in documents");
    }
  }
}

void fields_follow_from_runs() {
  // Two sequences of 6: document 4 (BOS and two tokens), document 9 (one token, EOS), padding; document 9 (EOS alone), padding.
  const Ids starts{-2, 100, 300, -3, -1, -3, -1};
  const Ids counts{1, 2, 1, 1, 1, 1, 5};
  const Ids documents{4, 4, 9, 9, -1, 9, -1};
  std::vector<std::int16_t> tokens(12, 5);
  tokens[1] = -7;
  const std::int16_t added[3] = {-1, 11, 12};
  std::vector<std::int32_t> segment(12);
  std::vector<std::int32_t> position(12);
  Ids labels(12);
  std::vector<std::int32_t> cu_seqlens(14);
  std::vector<std::int32_t> max_seqlen(2);
  PackFields fields{reinterpret_cast<std::byte*>(tokens.data()),
                    2,
                    true,
                    std::as_bytes(std::span(added)),
                    1,
                    0,
                    segment.data(),
                    position.data(),
                    labels.data(),
                    1,
                    cu_seqlens.data(),
                    max_seqlen.data()};
  fill_pack_fields({starts, counts, documents, 6}, 12, fields);
  check_equal(tokens, {11, -7, 5, 5, 12, -1, 12, -1, -1, -1, -1, -1}, "tokens");
  check_equal(segment, {1, 1, 1, 2, 2, 0, 1, 0, 0, 0, 0, 0}, "segment");
  check_equal(position, {0, 1, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0}, "position");
  check_equal(labels, {-7, 5, -100, 12, -100, -100, -100, -100, -100, -100, -100, -100}, "labels");
  check_equal(cu_seqlens, {0, 3, 5, 6, 6, 6, 6, 0, 1, 6, 6, 6, 6, 6}, "cu_seqlens");
  check_equal(max_seqlen, {3, 5}, "max_seqlen");
  fields.multiple = 2;
  fill_pack_fields({Ids{7, -1, 8, -1}, Ids{3, 1, 1, 1}, Ids{4, -1, 5, -1}, 6}, 6, fields);
  cu_seqlens.resize(7);
  check_equal(cu_seqlens, {0, 4, 6, 6, 6, 6, 6}, "cu_seqlens with room");
  check_equal(max_seqlen[0], 4, "max_seqlen with room");
  fill_pack_fields({Ids{-1}, Ids{6}, Ids{-1}, 6}, 6, fields);
  check_equal(cu_seqlens, {0, 6, 6, 6, 6, 6, 6}, "cu_seqlens of padding");
  fields.cu_seqlens = nullptr;
  fields.max_seqlen = nullptr;
  fields.multiple = 1;
  fields.segment = nullptr;
  fields.position = nullptr;
  fields.labels = nullptr;
  fill_pack_fields({starts, counts, documents, 6}, 12, fields);
  check_throws<std::invalid_argument>([&] { fill_pack_fields({starts, counts, documents, 5}, 12, fields); });
  check_throws<std::invalid_argument>([&] { fill_pack_fields({starts, counts, documents, 6}, 18, fields); });
  fields.added = fields.added.first(4);
  check_throws<std::invalid_argument>([&] { fill_pack_fields({starts, counts, documents, 6}, 12, fields); });
}

}  // namespace

int main() {
  plans_are_those_of_loops();
  whole_documents_are_not_cut();
  no_sequence_stays_empty_where_another_has_two_pieces();
  sequences_come_in_the_order_of_a_permutation();
  any_sequences_are_written_anywhere();
  what_is_added_counts();
  edges_leave_room_for_every_group();
  what_does_not_fit_is_refused();
  runs_follow_from_pieces();
  fields_follow_from_runs();
  return finish();
}
