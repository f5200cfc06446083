#include "core/codec.h"

#include <libdeflate.h>
#include <lz4.h>
#include <lz4hc.h>
#include <zdict.h>
#include <zstd.h>

#include <cstring>
#include <new>
#include <stdexcept>

namespace penstock {
namespace {

constexpr std::size_t kMaxLz4 = LZ4_MAX_INPUT_SIZE;
constexpr int kMaxWindowLog = 27;  // 128 MiB: what a frame may ask a reader to hold

template <auto kFree>
struct Free {
  template <class T>
  void operator()(T* p) const {
    kFree(p);
  }
};

template <class T>
T* need(T* made) {
  if (made == nullptr) throw std::bad_alloc();
  return made;
}

}  // namespace

struct Dictionary::Digest {
  std::unique_ptr<ZSTD_CDict, Free<ZSTD_freeCDict>> encode;
  std::unique_ptr<ZSTD_DDict, Free<ZSTD_freeDDict>> decode;
};

Dictionary::Dictionary() : digest_(std::make_unique<Digest>()) {}

std::unique_ptr<Dictionary> Dictionary::for_writing(std::span<const std::byte> bytes, int level) {
  std::unique_ptr<Dictionary> made(new Dictionary);
  made->digest_->encode.reset(need(ZSTD_createCDict(bytes.data(), bytes.size(), level)));
  return made;
}

std::unique_ptr<Dictionary> Dictionary::for_reading(std::span<const std::byte> bytes) {
  std::unique_ptr<Dictionary> made(new Dictionary);
  made->digest_->decode.reset(ZSTD_createDDict(bytes.data(), bytes.size()));
  return made->digest_->decode == nullptr ? nullptr : std::move(made);
}

Dictionary::~Dictionary() = default;

std::vector<std::byte> train_dictionary(std::span<const std::byte> samples, std::span<const std::uint64_t> ends,
                                        std::size_t bytes) {
  std::vector<std::size_t> sizes;
  std::uint64_t before = 0;
  for (const std::uint64_t end : ends) {
    if (end < before || end > samples.size()) throw std::invalid_argument("expected rising ends within the samples");
    sizes.push_back(end - before);
    before = end;
  }
  std::vector<std::byte> dictionary(bytes);
  const std::size_t size = ZDICT_trainFromBuffer(dictionary.data(), dictionary.size(), samples.data(), sizes.data(),
                                                 static_cast<unsigned>(sizes.size()));
  if (ZDICT_isError(size) != 0) {
    throw std::invalid_argument(std::string("no dictionary can be trained on these samples (give more or longer ones): ") +
                                ZDICT_getErrorName(size));
  }
  dictionary.resize(size);
  return dictionary;
}

struct Encoder::Context {
  std::unique_ptr<ZSTD_CCtx, Free<ZSTD_freeCCtx>> zstd;
  std::unique_ptr<libdeflate_compressor, Free<libdeflate_free_compressor>> deflate;
};

Encoder::Encoder(Codec codec, int level, const Dictionary* dictionary)
    : codec_(codec), level_(level), dictionary_(dictionary), context_(std::make_unique<Context>()) {
  if (codec == Codec::zstd) context_->zstd.reset(need(ZSTD_createCCtx()));
  if (codec == Codec::deflate) context_->deflate.reset(need(libdeflate_alloc_compressor(level)));
}

Encoder::~Encoder() = default;

void Encoder::append(std::span<const std::byte> record, std::vector<std::byte>& out) {
  const std::size_t start = out.size();
  // Room for one byte less than the record: what does not fit there is not worth compressing.
  const std::size_t room = codec_ == Codec::raw || record.empty() ? 0 : record.size() - 1;
  std::size_t size = 0;
  if (room > 0) {
    out.resize(start + room);
    std::byte* to = out.data() + start;
    if (codec_ == Codec::zstd) {
      const std::size_t done = dictionary_ != nullptr
                                   ? ZSTD_compress_usingCDict(context_->zstd.get(), to, room, record.data(), record.size(),
                                                              dictionary_->digest_->encode.get())
                                   : ZSTD_compressCCtx(context_->zstd.get(), to, room, record.data(), record.size(), level_);
      size = ZSTD_isError(done) != 0 ? 0 : done;
    } else if (codec_ == Codec::deflate) {
      size = libdeflate_deflate_compress(context_->deflate.get(), record.data(), record.size(), to, room);
    } else if (record.size() <= kMaxLz4) {
      const auto* from = reinterpret_cast<const char*>(record.data());
      auto* text = reinterpret_cast<char*>(to);
      const int in = static_cast<int>(record.size());
      const int cap = static_cast<int>(room);
      const int done = level_ > 1 ? LZ4_compress_HC(from, text, in, cap, level_) : LZ4_compress_default(from, text, in, cap);
      size = done > 0 ? static_cast<std::size_t>(done) : 0;
    }
  }
  if (size == 0) {
    out.resize(start + record.size());
    if (!record.empty()) std::memcpy(out.data() + start, record.data(), record.size());
  } else {
    out.resize(start + size);
  }
}

std::uint64_t most_decoded(Codec codec, std::uint64_t stored) {
  switch (codec) {
    case Codec::raw: return stored;
    case Codec::deflate: return 1'032 * stored + 1'032;       // 258 bytes from two bits
    case Codec::zstd: return (stored / 3 + 1) * (128 << 10);  // a block of 128 KiB from its header
    case Codec::lz4: return 255 * stored + 255;
  }
  return 0;
}

struct Decoder::Context {
  std::unique_ptr<ZSTD_DCtx, Free<ZSTD_freeDCtx>> zstd;
  std::unique_ptr<libdeflate_decompressor, Free<libdeflate_free_decompressor>> deflate;
};

Decoder::Decoder() : context_(std::make_unique<Context>()) {
  context_->zstd.reset(need(ZSTD_createDCtx()));
  ZSTD_DCtx_setParameter(context_->zstd.get(), ZSTD_d_windowLogMax, kMaxWindowLog);
  context_->deflate.reset(need(libdeflate_alloc_decompressor()));
}

Decoder::~Decoder() = default;

bool Decoder::decode(Codec codec, const Dictionary* dictionary, std::span<const std::byte> stored,
                     std::span<std::byte> out) noexcept {
  if (stored.size() == out.size()) {  // stored as it is, whatever the codec
    if (!out.empty()) std::memcpy(out.data(), stored.data(), out.size());
    return true;
  }
  if (stored.size() > out.size()) return false;
  switch (codec) {
    case Codec::raw: return false;
    case Codec::zstd: {
      // One frame and nothing after it: a second frame would let a small record unpack to more than its share.
      const std::size_t frame = ZSTD_findFrameCompressedSize(stored.data(), stored.size());
      if (ZSTD_isError(frame) != 0 || frame != stored.size()) return false;
      const std::size_t done =
          dictionary != nullptr ? ZSTD_decompress_usingDDict(context_->zstd.get(), out.data(), out.size(), stored.data(),
                                                             stored.size(), dictionary->digest_->decode.get())
                                : ZSTD_decompressDCtx(context_->zstd.get(), out.data(), out.size(), stored.data(), stored.size());
      return ZSTD_isError(done) == 0 && done == out.size();
    }
    case Codec::deflate: {
      std::size_t used = 0;
      const libdeflate_result result = libdeflate_deflate_decompress_ex(context_->deflate.get(), stored.data(), stored.size(),
                                                                        out.data(), out.size(), &used, nullptr);
      return result == LIBDEFLATE_SUCCESS && used == stored.size();
    }
    case Codec::lz4: {
      if (stored.size() > kMaxLz4 || out.size() > kMaxLz4) return false;
      const int done = LZ4_decompress_safe(reinterpret_cast<const char*>(stored.data()), reinterpret_cast<char*>(out.data()),
                                           static_cast<int>(stored.size()), static_cast<int>(out.size()));
      return done >= 0 && static_cast<std::size_t>(done) == out.size();
    }
  }
  return false;
}

bool decompress_zstd(std::span<const std::byte> stored, std::span<std::byte> out) noexcept {
  const std::size_t done = ZSTD_decompress(out.data(), out.size(), stored.data(), stored.size());
  return ZSTD_isError(done) == 0 && done == out.size();
}

std::int64_t zstd_content_bytes(std::span<const std::byte> head) noexcept {
  const unsigned long long found = ZSTD_getFrameContentSize(head.data(), head.size());
  return found == ZSTD_CONTENTSIZE_ERROR || found == ZSTD_CONTENTSIZE_UNKNOWN || found > INT64_MAX
             ? -1
             : static_cast<std::int64_t>(found);
}

}  // namespace penstock
