// Chunks made by hand for tests: any values, with every checksum right.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/chunk.h"
#include "core/crc32c.h"
#include "core/little_endian.h"

namespace penstock {

using Image = std::vector<std::byte>;

template <class T>
void store_le(std::byte* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

// Where an array of an entry is, if it is in the file at all.
inline std::span<std::byte> array_of(Image& image, const std::byte* entry, std::size_t i) {
  const auto offset = load_le<std::uint64_t>(entry + 40 + 24 * i);
  const auto bytes = load_le<std::uint64_t>(entry + 48 + 24 * i);
  if (offset > image.size() || bytes > image.size() - offset) return {};
  return std::span(image).subspan(offset, bytes);
}

inline void seal_pages(Image& image, const std::byte* entry, std::uint64_t rows) {
  const auto data_offset = load_le<std::uint64_t>(entry + 16);
  const auto data_bytes = load_le<std::uint64_t>(entry + 24);
  const std::uint64_t per_page = std::max<std::uint64_t>(1, load_le<std::uint32_t>(entry + 32));
  const std::span<std::byte> pages = array_of(image, entry, 0);
  const std::span<std::byte> ends = array_of(image, entry, 1);
  const auto stride = load_le<std::uint64_t>(entry + 8);
  if (data_offset > image.size() || data_bytes > image.size() - data_offset) return;
  for (std::uint64_t page = 0; 4 * page + 4 <= pages.size() && page * per_page < rows; ++page) {
    const std::uint64_t first = page * per_page;
    const std::uint64_t last = std::min(rows, first + per_page);
    std::uint64_t low = first * stride;
    std::uint64_t high = last * stride;
    if (!ends.empty()) {
      if (8 * last > ends.size()) return;
      low = first == 0 ? 0 : load_le<std::uint64_t>(&ends[8 * (first - 1)]);
      high = load_le<std::uint64_t>(&ends[8 * (last - 1)]);
    }
    if (low <= high && high <= data_bytes) {
      store_le(&pages[4 * page], crc32c(std::span(image).subspan(data_offset + low, high - low)));
    }
  }
}

// Makes every checksum and fixed value of an image of at least 128 bytes right and leaves the rest as it is. The data set is
// zero.
inline ChunkFact seal(Image& image, const std::string& path) {
  std::memcpy(&image[0], kChunkMagic.data(), 8);
  store_le(&image[8], kChunkVersion);
  std::memset(&image[16], 0, 16);
  store_le(&image[60], crc32c(std::span(image).first(60)));
  std::byte* tail = &image[image.size() - kChunkTailBytes];
  const std::uint64_t room = (image.size() - kChunkHeaderBytes - kChunkTailBytes) / kChunkEntryBytes;
  const std::uint64_t fields = std::min<std::uint64_t>(load_le<std::uint32_t>(tail + 24), room);
  const std::uint64_t rows = std::min<std::uint64_t>(load_le<std::uint64_t>(tail), kMaxRows);
  const std::uint64_t entries = image.size() - kChunkTailBytes - fields * kChunkEntryBytes;
  store_le<std::uint64_t>(tail, rows);
  store_le<std::uint64_t>(tail + 8, entries);
  store_le<std::uint64_t>(tail + 16, image.size());
  store_le(tail + 24, static_cast<std::uint32_t>(fields));
  store_le(tail + 28, kChunkVersion);
  std::memset(tail + 32, 0, 16);
  for (std::uint64_t i = 0; i < fields; ++i) {
    std::byte* entry = &image[entries + i * kChunkEntryBytes];
    seal_pages(image, entry, rows);
    for (std::size_t a = 0; a < 6; ++a) store_le(entry + 56 + 24 * a, crc32c(array_of(image, entry, a)));
  }
  const std::uint32_t crc = crc32c(std::span(image).subspan(entries, fields * kChunkEntryBytes + 52));
  store_le(tail + 52, crc);
  std::memcpy(tail + 56, kChunkTailMagic.data(), 8);
  return {path, image.size(), static_cast<std::uint32_t>(rows), crc};
}

// One field of an image; arrays go by their place in the entry (0 pages, 1 ends, 2 lengths, 3 dims, 4 validity, 5 dictionary).
struct ImageField {
  std::uint32_t number = 0;
  Codec codec = Codec::raw;
  std::uint8_t ndim = 0;
  std::uint64_t stride = 0;
  std::uint32_t rows_per_page = 1;
  Image data = {};
  std::map<std::size_t, Image> arrays = {};
};

inline Image make_image(std::uint64_t rows, const std::vector<ImageField>& fields) {
  Image image(kChunkHeaderBytes);
  const auto append = [&](const Image& bytes, std::size_t alignment) {
    image.resize((image.size() + alignment - 1) / alignment * alignment);
    const std::uint64_t at = image.size();
    image.insert(image.end(), bytes.begin(), bytes.end());
    return at;
  };
  Image entries;
  for (const ImageField& field : fields) {
    Image entry(kChunkEntryBytes);
    store_le(&entry[0], field.number);
    entry[4] = static_cast<std::byte>(field.codec);
    entry[5] = static_cast<std::byte>(field.ndim);
    store_le(&entry[6], static_cast<std::uint16_t>(field.arrays.contains(4) ? kHasValidity : 0));
    store_le(&entry[8], field.stride);
    store_le<std::uint64_t>(&entry[16], append(field.data, kRegionAlignment));
    store_le<std::uint64_t>(&entry[24], field.data.size());
    store_le(&entry[32], field.rows_per_page);
    auto arrays = field.arrays;
    arrays.try_emplace(0, Image(4 * ((rows + field.rows_per_page - 1) / field.rows_per_page)));
    for (const auto& [place, bytes] : arrays) {
      store_le<std::uint64_t>(&entry[40 + 24 * place], append(bytes, 8));
      store_le<std::uint64_t>(&entry[48 + 24 * place], bytes.size());
    }
    entries.insert(entries.end(), entry.begin(), entry.end());
  }
  append(entries, 8);
  image.resize(image.size() + kChunkTailBytes);
  store_le<std::uint64_t>(&image[image.size() - 64], rows);
  store_le(&image[image.size() - 40], static_cast<std::uint32_t>(fields.size()));
  return image;
}

template <class T>
Image numbers(const std::vector<T>& values) {
  Image made(values.size() * sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) store_le(&made[i * sizeof(T)], values[i]);
  return made;
}

// A file in memory that is gone with this object.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& name) : path_("/dev/shm/penstock-" + name + "-" + std::to_string(getpid())) {
    ::unlink(path_.c_str());
    descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (descriptor_ < 0) std::abort();
  }
  ~ScratchFile() {
    ::close(descriptor_);
    ::unlink(path_.c_str());
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  const std::string& path() const { return path_; }
  void fill(const Image& image) const {
    if (pwrite(descriptor_, image.data(), image.size(), 0) != static_cast<ssize_t>(image.size())) std::abort();
    cut(image.size());
  }
  void cut(std::uint64_t bytes) const {
    if (ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) std::abort();
  }

 private:
  std::string path_;
  int descriptor_;
};

}  // namespace penstock
