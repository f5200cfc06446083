// Compression of single records. What is decoded is hostile: sizes are known and checked before a byte is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace penstock {

// The numbers are part of the format.
enum class Codec : std::uint8_t { raw = 0, deflate = 1, zstd = 2, lz4 = 3 };

inline constexpr int kNumCodecs = 4;

// A zstd dictionary, digested once and used by any number of threads.
class Dictionary {
 public:
  static std::unique_ptr<Dictionary> for_writing(std::span<const std::byte> bytes, int level);
  // Null if the bytes are not a dictionary.
  static std::unique_ptr<Dictionary> for_reading(std::span<const std::byte> bytes);
  ~Dictionary();
  Dictionary(const Dictionary&) = delete;
  Dictionary& operator=(const Dictionary&) = delete;

 private:
  friend class Encoder;
  friend class Decoder;
  struct Digest;
  Dictionary();
  std::unique_ptr<Digest> digest_;
};

// Trains a dictionary on samples that lie one after the other; ends[i] is where sample i ends.
std::vector<std::byte> train_dictionary(std::span<const std::byte> samples, std::span<const std::uint64_t> ends,
                                        std::size_t bytes);

// Compresses with one codec and level. For one thread; keeps its working memory between records.
class Encoder {
 public:
  Encoder(Codec codec, int level, const Dictionary* dictionary);
  ~Encoder();
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  // Appends the encoded record to out: compressed if that is shorter, else as it is. A stored length equal to the decoded
  // length therefore always means "as it is".
  void append(std::span<const std::byte> record, std::vector<std::byte>& out);

 private:
  struct Context;
  Codec codec_;
  int level_;
  const Dictionary* dictionary_;
  std::unique_ptr<Context> context_;
};

// The most bytes that this number of stored bytes can decode to: a longer record is a lie, and not worth its memory.
std::uint64_t most_decoded(Codec codec, std::uint64_t stored);

// Decompresses any codec. For one thread; keeps its working memory between records.
class Decoder {
 public:
  Decoder();
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Fills out exactly, or returns false: stored bytes that are damaged, too short, too long or of another dictionary.
  bool decode(Codec codec, const Dictionary* dictionary, std::span<const std::byte> stored, std::span<std::byte> out) noexcept;

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

// Decompresses zstd frames, one behind the other, that fill out exactly; returns false if they do not.
bool decompress_zstd(std::span<const std::byte> stored, std::span<std::byte> out) noexcept;

// The bytes that a zstd frame with this header has, decompressed; -1 if it does not say, or is none.
std::int64_t zstd_content_bytes(std::span<const std::byte> head) noexcept;

}  // namespace penstock
