#include "core/utf8.h"

#include <cstdint>
#include <span>
#include <string>

#include "check.h"

using namespace penstock;

namespace {

bool is_text(const std::string& text) { return is_utf8(std::as_bytes(std::span(text))); }

// Decodes one character by the book; 0 if there is none.
std::size_t naive_length(const std::uint8_t* p, std::size_t left) {
  const std::size_t length = p[0] < 0x80 ? 1 : p[0] >> 5 == 6 ? 2 : p[0] >> 4 == 14 ? 3 : p[0] >> 3 == 30 ? 4 : 0;
  if (length == 0 || length > left) return 0;
  std::uint32_t code = length == 1 ? p[0] : p[0] & (0x7F >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if (p[i] >> 6 != 2) return 0;
    code = code << 6 | (p[i] & 0x3F);
  }
  const std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  return code >= least[length] && code <= 0x10FFFF && !surrogate ? length : 0;
}

bool naive(const std::string& text) {
  const auto* p = reinterpret_cast<const std::uint8_t*>(text.data());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = naive_length(p + at, text.size() - at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

void every_text_of_up_to_three_bytes_is_judged_right() {
  for (std::uint32_t code = 0; code < 1U << 24; ++code) {
    const std::string text{static_cast<char>(code >> 16), static_cast<char>(code >> 8), static_cast<char>(code)};
    if (is_text(text) != naive(text)) check(false, say("bytes ", code));
  }
}

void every_start_of_four_bytes_is_judged_right() {
  const std::string edges("\x00\x7F\x80\x8F\x90\x9F\xA0\xBF\xC0\xFF", 10);
  for (int first = 0xE0; first < 0x100; ++first) {
    for (int second = 0; second < 0x100; ++second) {
      for (const char third : edges) {
        for (const char fourth : edges) {
          const std::string text{static_cast<char>(first), static_cast<char>(second), third, fourth};
          if (is_text(text) != naive(text)) check(false, say("first bytes ", first, " ", second));
        }
      }
    }
  }
}

void a_bad_byte_is_seen_at_every_place_of_a_long_text() {
  for (std::size_t length = 1; length < 100; ++length) {
    check(is_text(std::string(length, 'x')), say("length ", length));
    for (std::size_t at = 0; at < length; ++at) {
      std::string text(length, 'x');
      text[at] = '\xFF';
      check(!is_text(text), say("length ", length, " bad at ", at));
    }
  }
}

}  // namespace

int main() {
  every_text_of_up_to_three_bytes_is_judged_right();
  every_start_of_four_bytes_is_judged_right();
  a_bad_byte_is_seen_at_every_place_of_a_long_text();
  return finish();
}
