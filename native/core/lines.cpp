#include "core/lines.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace penstock {
namespace {

constexpr unsigned char kMark[] = {0xEF, 0xBB, 0xBF};

bool is_white(char letter) { return letter == ' ' || letter == '\t' || letter == '\r'; }

const char* find(const char* low, const char* high, char letter) {
  const void* const found = std::memchr(low, letter, static_cast<std::size_t>(high - low));
  return found == nullptr ? high : static_cast<const char*>(found);
}

}  // namespace

struct LineScanner::Out {
  std::span<std::int64_t> spans;
  std::size_t count = 0;
};

std::size_t LineScanner::scan(std::span<const std::byte> piece, std::span<std::int64_t> spans) {
  Out out{spans};
  piece_ = reinterpret_cast<const char*>(piece.data());
  const char* const end = piece_ + piece.size();
  const char* const at = skip_mark(piece_, end);
  if (delimiter_ == 0) {
    scan_json(at, end, out);
  } else {
    scan_rows(at, end, out);
  }
  offset_ += static_cast<std::int64_t>(piece.size());
  return out.count;
}

std::size_t LineScanner::finish(std::span<std::int64_t> spans) {
  Out out{spans};
  if (mark_ == 1 || mark_ == 2) {  // half a mark is all there is
    start_ = 0;
    stop_ = mark_;
  }
  end_line(out);
  return out.count;
}

// Where the text begins. A mark may come in pieces, too; the first bytes of one that is not whole belong to the first line.
const char* LineScanner::skip_mark(const char* at, const char* end) {
  while (mark_ < 3 && at < end) {
    if (static_cast<unsigned char>(*at) != kMark[mark_]) {
      if (mark_ > 0) {
        start_ = 0;
        stop_ = mark_;
        state_ = State::plain;
      }
      mark_ = 3;
      break;
    }
    ++mark_;
    ++at;
  }
  return at;
}

// Bytes [low, high) belong to the line under way.
void LineScanner::take(const char* low, const char* high) {
  if (low == high) return;
  if (start_ < 0) start_ = offset_of(low);
  stop_ = offset_of(high);
}

void LineScanner::end_line(Out& out) {
  if (start_ >= 0) {
    if (2 * out.count + 2 > out.spans.size()) throw std::invalid_argument("expected a place for every line");
    out.spans[2 * out.count] = start_;
    out.spans[2 * out.count + 1] = stop_ - start_;
    ++out.count;
  }
  start_ = -1;
  state_ = State::field_start;
}

void LineScanner::scan_json(const char* at, const char* end, Out& out) {
  while (at < end) {
    const char* const stop = find(at, end, '\n');
    const char* high = stop;
    if (start_ < 0) {
      while (at < high && is_white(*at)) ++at;
    }
    while (at < high && is_white(high[-1])) --high;
    take(at, high);
    if (stop == end) return;
    ++newlines_;
    end_line(out);
    at = stop + 1;
  }
}

void LineScanner::scan_rows(const char* at, const char* end, Out& out) {
  const char* stop = nullptr;  // the next newline, looked for again only behind it: rows may end with returns alone
  while (at < end) {
    if (after_return_) {
      after_return_ = false;
      if (*at == '\n') {
        ++newlines_;
        ++at;
        continue;
      }
    }
    if (state_ == State::field_start && start_ < 0) {  // a row begins; most have neither quotes nor returns within
      if (stop < at) stop = find(at, end, '\n');
      const char* const high = stop > at && stop[-1] == '\r' ? stop - 1 : stop;
      if (stop < end && find(at, high, '\r') == high && find(at, high, '"') == high) {
        take(at, high);
        ++newlines_;
        end_line(out);
        at = stop + 1;
        continue;
      }
    }
    at = scan_row_slowly(at, end, out);
  }
}

// Goes on to the end of the row, or of the piece; gives where that is.
const char* LineScanner::scan_row_slowly(const char* at, const char* end, Out& out) {
  const char* const low = at;
  while (at < end) {
    if (state_ == State::quoted) {
      const char* const quote = find(at, end, '"');
      newlines_ += std::count(at, quote, '\n');
      if (quote == end) {
        at = end;
        break;
      }
      state_ = State::quote_in_quotes;
      at = quote + 1;
      continue;
    }
    const char letter = *at;
    if (letter == '\n' || letter == '\r') {
      take(low, at);
      if (letter == '\n') ++newlines_;
      after_return_ = letter == '\r';
      end_line(out);
      return at + 1;
    }
    if (letter == '"' && state_ != State::plain) {  // opens a field; or the second of two in quotes, which are one of the text
      state_ = State::quoted;
    } else {
      state_ = letter == delimiter_ ? State::field_start : State::plain;
    }
    ++at;
  }
  take(low, at);
  return at;
}

void join_lines(std::span<const std::byte> text, std::span<const std::int64_t> offsets, std::span<std::byte> out) {
  if (offsets.empty() || offsets.front() != 0 || !std::is_sorted(offsets.begin(), offsets.end()) ||
      static_cast<std::size_t>(offsets.back()) != text.size() || out.size() != text.size() + offsets.size() - 1) {
    throw std::invalid_argument("expected lines that fill the text, and a byte more for each");
  }
  std::byte* to = out.data();
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const auto size = static_cast<std::size_t>(offsets[i + 1] - offsets[i]);
    if (size != 0) std::memcpy(to, text.data() + offsets[i], size);
    to[size] = std::byte{'\n'};
    to += size + 1;
  }
}

}  // namespace penstock
