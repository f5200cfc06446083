#include "core/documents.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"

using namespace penstock;

namespace {

// Token by token: a separator may end at each of them, and a break may come before it.
template <class T>
void mark_naively(const std::vector<T>& tokens, std::size_t length, const std::vector<T>& separator,
                  const std::vector<std::int64_t>& breaks, std::vector<std::int32_t>& segment,
                  std::vector<std::int32_t>& position) {
  for (std::size_t row = 0; row < tokens.size(); row += length) {
    std::int32_t number = 0;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < length; ++i) {
      const bool broken = std::find(breaks.begin(), breaks.end(), static_cast<std::int64_t>(row + i)) != breaks.end();
      if (broken && i > begin) {
        ++number;
        begin = i;
      }
      segment.push_back(number);
      position.push_back(static_cast<std::int32_t>(i - begin));
      const bool room = i + 1 >= begin + separator.size();
      if (room && !separator.empty() &&
          std::equal(separator.begin(), separator.end(),
                     tokens.begin() + static_cast<std::ptrdiff_t>(row + i + 1 - separator.size()))) {
        ++number;
        begin = i + 1;
      }
    }
  }
}

template <class T>
void all_is_as_the_naive_way_says() {
  std::mt19937_64 random(5);
  for (const std::size_t length : {1, 2, 3, 63, 64, 65, 200, 1000}) {
    for (const std::size_t width : {0, 1, 2, 3, 5}) {
      for (const unsigned kinds : {1, 2, 3, 40, 200}) {
        std::vector<T> tokens(length * 7);
        for (T& token : tokens) token = static_cast<T>(random() % kinds);
        std::vector<T> separator(width);
        for (T& token : separator) token = static_cast<T>(random() % kinds);
        std::vector<std::int64_t> breaks;
        for (std::size_t i = 0; i < tokens.size(); ++i) {
          if (random() % 20 < width) breaks.push_back(static_cast<std::int64_t>(i));
        }
        std::vector<std::int32_t> segment;
        std::vector<std::int32_t> position;
        mark_naively(tokens, length, separator, breaks, segment, position);
        std::vector<std::int32_t> found(tokens.size());
        std::vector<std::int32_t> places(tokens.size());
        mark_documents(std::as_bytes(std::span(tokens)), sizeof(T), length, std::as_bytes(std::span(separator)), breaks,
                       found.data(), places.data());
        check(found == segment, say("segments of ", sizeof(T), " bytes, length ", length, ", width ", width));
        check(places == position, say("positions of ", sizeof(T), " bytes, length ", length, ", width ", width));
      }
    }
  }
}

// Pieces overlap by what a separator may lack at the end of one, as whoever reads a long line does it.
template <class T>
void ends_are_the_same_however_tokens_are_cut() {
  std::mt19937_64 random(6);
  for (const std::size_t width : {1, 2, 3, 5}) {
    for (const unsigned kinds : {1, 2, 3, 40}) {
      std::vector<T> tokens(500);
      for (T& token : tokens) token = static_cast<T>(random() % kinds);
      std::vector<T> separator(width);
      for (T& token : separator) token = static_cast<T>(random() % kinds);
      std::vector<std::int64_t> expected;
      for (std::size_t at = 0; at + width <= tokens.size();) {
        const bool is_one = std::equal(separator.begin(), separator.end(), tokens.begin() + static_cast<std::ptrdiff_t>(at));
        at += is_one ? width : 1;
        if (is_one) expected.push_back(static_cast<std::int64_t>(at));
      }
      for (const std::size_t step : {1, 7, 64, 499, 500, 1000}) {
        std::vector<std::int64_t> found;
        std::vector<std::int64_t> some(tokens.size());
        std::size_t from = 0;  // in all tokens
        for (std::size_t low = 0; low < tokens.size(); low += step) {
          const std::size_t high = std::min(tokens.size(), low + step + width - 1);
          std::size_t start = from - std::min(from, low);
          const auto piece = std::as_bytes(std::span(tokens).subspan(low, high - low));
          const std::size_t count = find_document_ends(piece, sizeof(T), std::as_bytes(std::span(separator)), start, some);
          for (std::size_t i = 0; i < count; ++i) found.push_back(some[i] + static_cast<std::int64_t>(low));
          from = low + start;
        }
        check(found == expected, say("ends of ", sizeof(T), " bytes, width ", width, ", step ", step));
      }
    }
  }
  const std::vector<T> tokens(10);
  std::vector<std::int64_t> few(9);
  std::size_t from = 0;
  const auto all = std::as_bytes(std::span(tokens));
  check_throws<std::invalid_argument>([&] { find_document_ends(all, sizeof(T), all.first(sizeof(T)), from, few); });
  check_throws<std::invalid_argument>([&] { find_document_ends(all, sizeof(T), {}, from, few); });
}

void what_does_not_fit_is_refused() {
  const std::vector<std::uint16_t> tokens(10);
  std::vector<std::int32_t> out(20);
  const auto bytes = std::as_bytes(std::span(tokens));
  const auto mark = [&](std::size_t item, std::size_t length, std::size_t separator) {
    return [=, &out] { mark_documents(bytes, item, length, bytes.first(separator), {}, out.data(), out.data() + 10); };
  };
  check_throws<std::invalid_argument>(mark(2, 3, 2));  // half a sequence
  check_throws<std::invalid_argument>(mark(2, 5, 3));  // half a separator
  check_throws<std::invalid_argument>(mark(3, 1, 3));  // tokens of three bytes
  check_throws<std::invalid_argument>(mark(2, 0, 2));  // sequences of nothing
  const std::vector<std::int64_t> falling = {4, 3};
  check_throws<std::invalid_argument>([&] { mark_documents(bytes, 2, 5, {}, falling, out.data(), out.data() + 10); });
}

}  // namespace

int main() {
  all_is_as_the_naive_way_says<std::uint8_t>();
  all_is_as_the_naive_way_says<std::uint16_t>();
  all_is_as_the_naive_way_says<std::uint32_t>();
  all_is_as_the_naive_way_says<std::uint64_t>();
  ends_are_the_same_however_tokens_are_cut<std::uint8_t>();
  ends_are_the_same_however_tokens_are_cut<std::uint64_t>();
  what_does_not_fit_is_refused();
  return finish();
}
