#include "core/crc32c.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "check.h"

using namespace penstock;

namespace {

using Bytes = std::vector<std::byte>;

std::vector<CrcPath> paths() {
  std::vector<CrcPath> all{CrcPath::portable};
  if (best_crc_path() == CrcPath::hardware) all.push_back(CrcPath::hardware);
  return all;
}

// One bit at a time, from the definition: naive_prefixes(data)[i] is the crc of the first i bytes.
std::vector<std::uint32_t> naive_prefixes(std::span<const std::byte> data) {
  std::uint32_t state = 0xFFFFFFFF;
  std::vector<std::uint32_t> prefixes{0};
  for (const std::byte byte : data) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      const std::uint32_t out = (state ^ (static_cast<std::uint32_t>(byte) >> bit)) & 1;
      state = (state >> 1) ^ (out * 0x82F63B78U);
    }
    prefixes.push_back(~state);
  }
  return prefixes;
}

Bytes noise(std::size_t size) {
  Bytes bytes(size);
  std::uint64_t state = 88172645463325252;
  for (std::byte& byte : bytes) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    byte = static_cast<std::byte>(state >> 32);
  }
  return bytes;
}

void published_vectors_are_met() {
  Bytes digits;
  for (const char digit : std::string_view("123456789")) digits.push_back(static_cast<std::byte>(digit));
  Bytes ascending(32);
  for (std::size_t i = 0; i < 32; ++i) ascending[i] = static_cast<std::byte>(i);
  Bytes descending(ascending.rbegin(), ascending.rend());
  for (const CrcPath path : paths()) {  // RFC 3720, B.4
    check_equal(crc32c({}, 0, path), 0);
    check_equal(crc32c(digits, 0, path), 0xE3069283);
    check_equal(crc32c(Bytes(32, std::byte{0}), 0, path), 0x8A9136AA);
    check_equal(crc32c(Bytes(32, std::byte{0xFF}), 0, path), 0x62A8AB43);
    check_equal(crc32c(ascending, 0, path), 0x46DD794E);
    check_equal(crc32c(descending, 0, path), 0x113FDB5C);
  }
}

void the_default_path_is_the_best_one() {
  const Bytes data = noise(5000);
  check_equal(crc32c(data), crc32c(data, 0, best_crc_path()));
  check_equal(crc32c(data), naive_prefixes(data).back());
}

void every_path_equals_the_bitwise_crc_for_short_lengths_at_every_alignment() {
  const Bytes source = noise(616);
  for (std::size_t offset = 0; offset < 16; ++offset) {
    const std::vector<std::uint32_t> expected = naive_prefixes(std::span(source).subspan(offset));
    for (std::size_t length = 0; length <= 600; ++length) {
      // A copy that ends where the data ends, so that the address sanitizer sees a read too far.
      const Bytes data(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(offset + length));
      for (const CrcPath path : paths()) {
        check_equal(crc32c(std::span(data).subspan(offset), 0, path), expected[length],
                    say("offset ", offset, " length ", length));
      }
    }
  }
}

void every_path_equals_the_bitwise_crc_around_whole_stripes() {
  const Bytes source = noise(65'536 + 16);
  for (const std::size_t offset : {0U, 5U, 8U}) {
    const std::vector<std::uint32_t> expected = naive_prefixes(std::span(source).subspan(offset, 65'536));
    for (const std::size_t stripes : {3U * 128U, 3U * 1344U, 4096U}) {
      for (std::size_t whole = stripes; whole < 65'536; whole += whole < 8192 ? stripes : 5 * stripes) {
        for (std::size_t length = whole - 9; length <= std::min<std::size_t>(whole + 9, 65'536); ++length) {
          for (const CrcPath path : paths()) {
            check_equal(crc32c(std::span(source).subspan(offset, length), 0, path), expected[length],
                        say("offset ", offset, " length ", length));
          }
        }
      }
    }
    for (const CrcPath path : paths()) check_equal(crc32c(std::span(source).subspan(offset, 65'536), 0, path), expected.back());
  }
}

void a_crc_continues_from_the_bytes_before_at_every_split() {
  const Bytes data = noise(4500);
  const std::vector<std::uint32_t> expected = naive_prefixes(data);
  for (const CrcPath path : paths()) {
    for (std::size_t split = 0; split <= data.size(); ++split) {
      const std::uint32_t before = crc32c(std::span(data).first(split), 0, path);
      check_equal(before, expected[split], say("prefix ", split));
      check_equal(crc32c(std::span(data).subspan(split), before, path), expected.back(), say("split ", split));
    }
  }
}

void a_flipped_bit_changes_the_crc() {
  Bytes data = noise(300);
  const std::uint32_t whole = crc32c(data);
  for (std::size_t bit = 0; bit < 8 * data.size(); ++bit) {
    data[bit / 8] ^= std::byte{1} << (bit % 8);
    check(crc32c(data) != whole, say("bit ", bit));
    data[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

}  // namespace

int main() {
  published_vectors_are_met();
  the_default_path_is_the_best_one();
  every_path_equals_the_bitwise_crc_for_short_lengths_at_every_alignment();
  every_path_equals_the_bitwise_crc_around_whole_stripes();
  a_crc_continues_from_the_bytes_before_at_every_split();
  a_flipped_bit_changes_the_crc();
  return finish();
}
