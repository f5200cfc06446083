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
  what_does_not_fit_is_refused();
  return finish();
}
