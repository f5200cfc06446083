#include "core/codec.h"

#include <cstring>
#include <string>

#include "check.h"

using namespace penstock;

namespace {

using Bytes = std::vector<std::byte>;

const std::vector<Codec> kAll{Codec::raw, Codec::deflate, Codec::zstd, Codec::lz4};

Bytes bytes_of(const std::string& text) {
  Bytes made(text.size());
  if (!text.empty()) std::memcpy(made.data(), text.data(), text.size());
  return made;
}

Bytes noise(std::size_t size) {
  Bytes made(size);
  std::uint64_t state = 88172645463325252;
  for (std::byte& byte : made) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    byte = static_cast<std::byte>(state >> 32);
  }
  return made;
}

Bytes repeated(std::size_t size) {
  Bytes made(size);
  for (std::size_t i = 0; i < size; ++i) made[i] = static_cast<std::byte>("abcabcabd"[i % 9]);
  return made;
}

Bytes encoded(Codec codec, int level, const Dictionary* dictionary, const Bytes& record) {
  Encoder encoder(codec, level, dictionary);
  Bytes out;
  encoder.append(record, out);
  return out;
}

bool decodes_to(Decoder& decoder, Codec codec, const Dictionary* dictionary, const Bytes& stored, const Bytes& record) {
  Bytes out(record.size());
  return decoder.decode(codec, dictionary, stored, out) && out == record;
}

void every_codec_level_and_size_comes_back() {
  Decoder decoder;
  for (const Codec codec : kAll) {
    for (const int level : {1, 3, 9, 12}) {
      for (const std::size_t size : {0, 1, 2, 7, 8, 63, 64, 1000, 70'000}) {
        for (const Bytes& record : {noise(size), repeated(size), Bytes(size)}) {
          const Bytes stored = encoded(codec, level, nullptr, record);
          check(stored.size() <= record.size(), say("codec ", int(codec), " made ", size, " bytes longer"));
          check(decodes_to(decoder, codec, nullptr, stored, record), say("codec ", int(codec), " level ", level, " size ", size));
        }
      }
    }
    if (codec != Codec::raw)
      check(encoded(codec, 3, nullptr, repeated(1000)).size() < 100, "a record that repeats becomes short");
  }
}

void records_follow_each_other_in_one_buffer() {
  for (const Codec codec : kAll) {
    Encoder encoder(codec, 3, nullptr);
    Decoder decoder;
    Bytes out;
    std::vector<std::size_t> ends;
    for (std::size_t size = 0; size < 200; ++size) {
      encoder.append(size % 2 == 0 ? repeated(size) : noise(size), out);
      ends.push_back(out.size());
    }
    for (std::size_t size = 0, start = 0; size < 200; start = ends[size++]) {
      const Bytes stored(out.begin() + static_cast<std::ptrdiff_t>(start), out.begin() + static_cast<std::ptrdiff_t>(ends[size]));
      check(decodes_to(decoder, codec, nullptr, stored, size % 2 == 0 ? repeated(size) : noise(size)), say("record of ", size));
    }
  }
}

void a_size_that_is_not_the_records_own_is_refused() {
  Decoder decoder;
  for (const Codec codec : kAll) {
    const Bytes stored = encoded(codec, 3, nullptr, repeated(500));
    for (std::size_t size = 0; size <= 1200; ++size) {
      Bytes out(size);
      const bool fits = size == 500 || size == stored.size();  // the second: taken for a record stored as it is
      check_equal(decoder.decode(codec, nullptr, stored, out), fits, say("codec ", int(codec), " decoded to ", size));
    }
  }
}

void cut_and_lengthened_records_are_refused() {
  Decoder decoder;
  for (const Codec codec : {Codec::deflate, Codec::zstd, Codec::lz4}) {
    const Bytes record = repeated(500);
    const Bytes stored = encoded(codec, 3, nullptr, record);
    for (std::size_t size = 0; size < stored.size(); ++size) {
      check(
          !decodes_to(decoder, codec, nullptr, Bytes(stored.begin(), stored.begin() + static_cast<std::ptrdiff_t>(size)), record),
          "cut");
    }
    for (const Bytes& more : {Bytes(1), stored, bytes_of("\x50\x2a\x4d\x18")}) {
      Bytes longer = stored;
      longer.insert(longer.end(), more.begin(), more.end());
      check(!decodes_to(decoder, codec, nullptr, longer, record),
            say("codec ", int(codec), " with ", more.size(), " bytes more"));
    }
    check(decodes_to(decoder, codec, nullptr, stored, record), "a good record after bad ones");
  }
}

// Every byte changed to every value: whatever comes out, nothing is read or written outside (the address sanitizer watches).
void flipped_records_never_reach_outside() {
  Decoder decoder;
  for (const Codec codec : {Codec::deflate, Codec::zstd, Codec::lz4}) {
    Bytes stored = encoded(codec, 3, nullptr, repeated(300));
    for (std::byte& byte : stored) {
      const std::byte saved = byte;
      for (int value = 0; value < 256; ++value) {
        byte = static_cast<std::byte>(value);
        Bytes out(300);
        (void)decoder.decode(codec, nullptr, stored, out);
      }
      byte = saved;
    }
  }
}

// Hand-made zstd frames: a bomb that fits its claim of 1 MiB decodes, one that claims more than its room does not.
Bytes zstd_bomb(std::uint64_t claimed, int blocks) {
  Bytes frame = bytes_of(std::string("\x28\xb5\x2f\xfd\xe0", 5));
  for (int i = 0; i < 8; ++i) frame.push_back(static_cast<std::byte>(claimed >> (8 * i)));
  for (int i = 0; i < blocks; ++i) {
    const std::uint32_t head = (i + 1 == blocks ? 1U : 0U) | 1U << 1 | (1U << 17) << 3;
    for (int b = 0; b < 3; ++b) frame.push_back(static_cast<std::byte>(head >> (8 * b)));
    frame.push_back(std::byte{'a'});
  }
  return frame;
}

void bombs_stop_at_the_size_the_index_names() {
  Decoder decoder;
  const Bytes honest(1 << 20, std::byte{'a'});
  check(decodes_to(decoder, Codec::zstd, nullptr, zstd_bomb(1 << 20, 8), honest), "a frame of 1 MiB");
  check(!decodes_to(decoder, Codec::zstd, nullptr, zstd_bomb(1 << 20, 9), honest), "more blocks than it claims");
  check(!decodes_to(decoder, Codec::zstd, nullptr, zstd_bomb(1ULL << 40, 8), honest), "a claim of 1 TiB");
  check(!decodes_to(decoder, Codec::zstd, nullptr, zstd_bomb(1 << 20, 8), Bytes(1000)), "less room than it needs");
}

void dictionaries_are_digested_or_refused() {
  std::string samples;
  std::vector<std::uint64_t> ends;
  for (int i = 0; i < 2000; ++i) {
    samples += "sample " + std::to_string(i) + " of a text that is like all the others, " + std::to_string(i * i);
    ends.push_back(samples.size());
  }
  const Bytes words = train_dictionary(bytes_of(samples), ends, 2048);
  check(!words.empty() && words.size() <= 2048, "a dictionary of the size asked for");
  const auto writing = Dictionary::for_writing(words, 3);
  const auto reading = Dictionary::for_reading(words);
  check(reading != nullptr, "its own dictionary can be read");
  const Bytes record = bytes_of("sample 77 of a text that is like all the others, 5929");
  const Bytes stored = encoded(Codec::zstd, 3, writing.get(), record);
  check(stored.size() < encoded(Codec::zstd, 3, nullptr, record).size(), "a dictionary helps");
  Decoder decoder;
  check(decodes_to(decoder, Codec::zstd, reading.get(), stored, record), "with the dictionary");
  check(!decodes_to(decoder, Codec::zstd, nullptr, stored, record), "without it");
  const auto other = Dictionary::for_reading(bytes_of("some other words, which are no dictionary of zstd's own making"));
  check(other == nullptr || !decodes_to(decoder, Codec::zstd, other.get(), stored, record), "with another");
  check(Dictionary::for_reading(bytes_of(std::string("\x37\xa4\x30\xec\x01\0\0\0garbage", 15))) == nullptr,
        "garbage after the magic");
  Bytes broken = words;
  for (std::size_t i = 8; i < 60; ++i) broken[i] = std::byte{0xFF};
  check(Dictionary::for_reading(broken) == nullptr, "a broken dictionary");
  check_throws<std::invalid_argument>([] { (void)train_dictionary(bytes_of("few"), std::vector<std::uint64_t>{3}, 1000); });
  check_throws<std::invalid_argument>([] { (void)train_dictionary(bytes_of("few"), std::vector<std::uint64_t>{2, 1}, 1000); });
  check_throws<std::invalid_argument>([] { (void)train_dictionary(bytes_of("few"), std::vector<std::uint64_t>{4}, 1000); });
}

}  // namespace

int main() {
  every_codec_level_and_size_comes_back();
  records_follow_each_other_in_one_buffer();
  a_size_that_is_not_the_records_own_is_refused();
  cut_and_lengthened_records_are_refused();
  flipped_records_never_reach_outside();
  bombs_stop_at_the_size_the_index_names();
  dictionaries_are_digested_or_refused();
  return finish();
}
