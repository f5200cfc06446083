// Lines of text files: where the records of a file begin and end, found in one pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// The lines of a file that comes in pieces, one after the other. Lines of nothing are left out, and so is a byte order mark at
// the beginning, unless the text is known to be a later part of a file.
//
// Without a delimiter a line ends with \n, and is what is left without white space (space, tab, \r) at both ends: JSON lines.
// With one, lines are the rows of RFC 4180: they end with \n, \r\n or \r outside quotes, and are taken as they are.
class LineScanner {
 public:
  explicit LineScanner(char delimiter = 0, bool from_start = true) : delimiter_(delimiter), mark_(from_start ? 0 : 3) {}

  // The lines that end in the next piece: of each the offset of its first byte in the file, and its size. Gives how many.
  // `spans` needs two places for each, 2 * most_lines() of the piece at most.
  std::size_t scan(std::span<const std::byte> piece, std::span<std::int64_t> spans);
  // The last line, if nothing ended it: 1 or 0. Quotes that were never closed: see in_quotes().
  std::size_t finish(std::span<std::int64_t> spans);

  static std::size_t most_lines(std::size_t bytes) { return bytes / 2 + 2; }

  std::int64_t newlines() const { return newlines_; }  // \n bytes so far, those in quotes too
  bool in_quotes() const { return state_ == State::quoted; }

 private:
  enum class State : std::uint8_t { field_start, plain, quoted, quote_in_quotes };
  struct Out;

  const char* skip_mark(const char* at, const char* end);
  void scan_json(const char* at, const char* end, Out& out);
  void scan_rows(const char* at, const char* end, Out& out);
  const char* scan_row_slowly(const char* at, const char* end, Out& out);
  void take(const char* low, const char* high);
  void end_line(Out& out);
  std::int64_t offset_of(const char* at) const { return offset_ + (at - piece_); }

  char delimiter_;
  State state_ = State::field_start;
  bool after_return_ = false;  // a row ended with \r: \n right behind it belongs to it
  int mark_;                   // bytes of the byte order mark seen; 3: it is behind us, or there is none
  std::int64_t start_ = -1;    // of the line under way; -1: nothing of it was seen yet
  std::int64_t stop_ = 0;      // behind its last byte that counts
  std::int64_t offset_ = 0;    // of the piece in the file
  std::int64_t newlines_ = 0;
  const char* piece_ = nullptr;
};

// Copies lines [offsets[i], offsets[i + 1]) of `text` to `out`, each followed by \n: out has as many bytes more as there are
// lines.
void join_lines(std::span<const std::byte> text, std::span<const std::int64_t> offsets, std::span<std::byte> out);

}  // namespace penstock
