#include "core/lines.h"

#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"

using namespace penstock;

namespace {

using Lines = std::vector<std::string>;

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

// The lines that a scanner finds in a text cut into pieces.
Lines scanned(const std::string& text, std::size_t piece, char delimiter = 0, std::int64_t* newlines = nullptr) {
  LineScanner scanner(delimiter);
  std::vector<std::int64_t> spans;
  const auto take = [&](auto step) {
    std::vector<std::int64_t> some(2 * LineScanner::most_lines(piece));
    some.resize(2 * step(std::span(some)));
    spans.insert(spans.end(), some.begin(), some.end());
  };
  for (std::size_t low = 0; low < text.size(); low += piece) {
    take([&](std::span<std::int64_t> out) { return scanner.scan(bytes(std::string_view(text).substr(low, piece)), out); });
  }
  take([&](std::span<std::int64_t> out) { return scanner.finish(out); });
  if (newlines != nullptr) *newlines = scanner.newlines();
  Lines found;
  for (std::size_t i = 0; i < spans.size(); i += 2) {
    found.push_back(text.substr(static_cast<std::size_t>(spans[i]), static_cast<std::size_t>(spans[i + 1])));
  }
  return found;
}

Lines naive_lines(std::string text) {
  std::size_t at = text.starts_with("\xEF\xBB\xBF") ? 3 : 0;
  Lines found;
  while (at < text.size()) {
    const std::size_t stop = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, stop - at);
    const std::size_t first = line.find_first_not_of(" \t\r");
    if (first != line.npos) found.push_back(line.substr(first, line.find_last_not_of(" \t\r") - first + 1));
    at = stop + 1;
  }
  return found;
}

// One byte after the other, as RFC 4180 and its relatives have it.
Lines naive_rows(const std::string& text) {
  Lines found;
  std::string row;
  bool quoted = false, field_start = true;
  for (std::size_t i = text.starts_with("\xEF\xBB\xBF") ? 3 : 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      row += c;
      if (c == '"') {
        if (i + 1 < text.size() && text[i + 1] == '"') {
          row += text[++i];
        } else {
          quoted = false;
        }
      }
      continue;
    }
    if (c == '\n' || c == '\r') {
      if (!row.empty()) found.push_back(row);
      row.clear();
      field_start = true;
      if (c == '\r' && i + 1 < text.size() && text[i + 1] == '\n') ++i;
      continue;
    }
    row += c;
    if (c == '"' && field_start) quoted = true;
    field_start = c == ',';
  }
  if (!row.empty()) found.push_back(row);
  return found;
}

void lines_are_those_of_a_naive_splitter_wherever_pieces_end() {
  std::mt19937 random(7);
  const std::string letters = "\n\n\r \t{}a\"\xEF\xBB\xBF";
  for (int turn = 0; turn < 3000; ++turn) {
    std::string text = turn % 3 == 0 ? "\xEF\xBB\xBF" : "";
    const std::size_t size = random() % 40;
    for (std::size_t i = 0; i < size; ++i) text += letters[random() % letters.size()];
    for (const std::size_t piece : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{7}, std::size_t{100}}) {
      std::int64_t newlines = 0;
      check(scanned(text, piece, 0, &newlines) == naive_lines(text), say("lines of ", text, " in pieces of ", piece));
      check_equal(newlines, static_cast<std::int64_t>(std::count(text.begin(), text.end(), '\n')), "newlines");
    }
  }
}

void rows_are_those_of_a_naive_splitter_wherever_pieces_end() {
  std::mt19937 random(8);
  const std::string letters = "\n\r\"\",,ab ";
  for (int turn = 0; turn < 5000; ++turn) {
    std::string text = turn % 5 == 0 ? "\xEF\xBB\xBF" : "";
    const std::size_t size = random() % 30;
    for (std::size_t i = 0; i < size; ++i) text += letters[random() % letters.size()];
    for (const std::size_t piece : {std::size_t{1}, std::size_t{2}, std::size_t{5}, std::size_t{100}}) {
      std::int64_t newlines = 0;
      check(scanned(text, piece, ',', &newlines) == naive_rows(text), say("rows of ", text, " in pieces of ", piece));
      check_equal(newlines, static_cast<std::int64_t>(std::count(text.begin(), text.end(), '\n')), "newlines");
    }
  }
}

void edges_are_right() {
  check(scanned("", 5).empty(), "nothing");
  check(scanned("\n\r\n \t\n", 2).empty(), "lines of nothing");
  check(scanned("{}", 1) == Lines{"{}"}, "no newline at the end");
  check(scanned("\xEF\xBB\xBF{}\r\n", 1) == Lines{"{}"}, "a mark");
  check(scanned("\xEF\xBB{}\n", 1) == Lines{"\xEF\xBB{}"}, "half a mark belongs to the line");
  const std::string giant(1 << 20, 'x');
  check(scanned(giant, 1000) == Lines{giant}, "one line");
  check(scanned("a,\"b\n\"\"c\",d\r\n\"e", 3, ',') == Lines{"a,\"b\n\"\"c\",d", "\"e"}, "newlines in quotes");
  check(scanned("5\" pipe,3\nx", 4, ',') == Lines{"5\" pipe,3", "x"}, "a quote within a field opens nothing");
}

void what_has_no_place_is_refused() {
  LineScanner scanner;
  std::vector<std::int64_t> one(2);
  check_throws<std::invalid_argument>([&] { scanner.scan(bytes("a\nb\n"), one); });
}

void a_later_part_of_a_file_has_no_mark() {
  LineScanner scanner(0, false);
  std::vector<std::int64_t> spans(4);
  check_equal(scanner.scan(bytes("\xEF\xBB\xBF{}\n"), spans), std::size_t{1}, "lines");
  check_equal(spans[1], std::int64_t{5}, "its bytes");
}

void lines_are_joined() {
  const std::string text = "abcd";
  std::string out(7, '?');
  join_lines(bytes(text), std::vector<std::int64_t>{0, 1, 1, 4}, std::as_writable_bytes(std::span(out)));
  check_equal(out, std::string("a\n\nbcd\n"), "text");
  const auto join = [&](std::vector<std::int64_t> offsets) {
    join_lines(bytes(text), offsets, std::as_writable_bytes(std::span(out)));
  };
  check_throws<std::invalid_argument>([&] { join({}); });
  check_throws<std::invalid_argument>([&] { join({0, 1, 1, 3}); });
  check_throws<std::invalid_argument>([&] { join({0, 2, 1, 4}); });
  check_throws<std::invalid_argument>([&] { join({0, 4}); });
}

}  // namespace

int main() {
  lines_are_those_of_a_naive_splitter_wherever_pieces_end();
  rows_are_those_of_a_naive_splitter_wherever_pieces_end();
  edges_are_right();
  what_has_no_place_is_refused();
  a_later_part_of_a_file_has_no_mark();
  lines_are_joined();
  return finish();
}
