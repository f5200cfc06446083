// Any bytes, taken as a stored record: decoded into exactly the number of bytes that is claimed, with and without a dictionary;
// and taken as a record: what was encoded decodes to the same.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "core/codec.h"

using namespace penstock;

namespace {

using Bytes = std::vector<std::byte>;

constexpr std::size_t kMaxOut = 1 << 20;

Bytes words() {
  Bytes made;
  for (int i = 0; i < 400; ++i) {
    for (const char letter : {'r', 'e', 'c', 'o', 'r', 'd', ' '}) made.push_back(static_cast<std::byte>(letter + i % 3));
  }
  return made;
}

void round_trip(Codec codec, int level, const Dictionary* writing, const Dictionary* dictionary,
                std::span<const std::byte> record) {
  Encoder encoder(codec, level, writing);
  Bytes stored;
  encoder.append(record, stored);
  Decoder decoder;
  Bytes out(record.size());
  if (stored.size() > record.size() || !decoder.decode(codec, dictionary, stored, out)) std::abort();
  if (!std::equal(out.begin(), out.end(), record.begin(), record.end())) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::unique_ptr<Dictionary> writing = Dictionary::for_writing(words(), 3);
  static const std::unique_ptr<Dictionary> reading = Dictionary::for_reading(words());
  static Decoder decoder;  // kept, so that what one record leaves behind meets the next
  if (size < 5) return -1;
  const auto codec = static_cast<Codec>(data[0] % kNumCodecs);
  const bool with_dictionary = (data[0] & 0x80) != 0;
  const Dictionary* chosen = with_dictionary ? reading.get() : nullptr;
  std::uint32_t claimed = 0;
  std::memcpy(&claimed, data + 1, 4);
  const auto* bytes = reinterpret_cast<const std::byte*>(data) + 5;
  const Bytes stored(bytes, bytes + size - 5);  // of its own, so that a read past the end is seen
  for (const std::size_t out_bytes : {std::size_t{claimed % kMaxOut}, stored.size(), stored.size() + 1, std::size_t{0}}) {
    Bytes out(out_bytes);
    if (decoder.decode(codec, chosen, stored, out) && out_bytes < stored.size()) std::abort();
  }
  round_trip(codec, 1 + data[1] % 12, with_dictionary ? writing.get() : nullptr, chosen, stored);
  (void)Dictionary::for_reading(stored);
  return 0;
}
