// Records of one field that have different lengths, as a ring reads them: sizes first, then the bytes at places laid out by them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// Bytes [skip, skip + count) of a record of `size` bytes, which go to `start` of the output.
struct RecordPart {
  std::int64_t row;
  std::int64_t size;
  std::int64_t skip;
  std::int64_t count;
  std::int64_t start;
};

// Safe to use from several threads. Rows exist. Errors are exceptions, and leave the outputs undefined.
class VaryingReader {
 public:
  virtual ~VaryingReader() = default;

  // sizes[i] is the number of bytes of record rows[i], -1 if it is missing. dims gets the shapes, ndim numbers per record (0 for
  // missing ones); with ndim 0 it is not used.
  virtual void sizes(std::span<const std::int64_t> rows, std::uint8_t ndim, std::int64_t* sizes, std::uint32_t* dims) const = 0;

  // Record rows[i] goes to out + starts[i]. It must have sizes[i] bytes, as it was measured; another size is an error.
  virtual void read(std::span<const std::int64_t> rows, const std::int64_t* starts, const std::int64_t* sizes,
                    std::byte* out) const = 0;

  // Parts of records, which were measured before and are not missing. Parts of one record that follow each other decode it once.
  virtual void read_parts(std::span<const RecordPart> parts, std::byte* out) const = 0;

  // The most bytes that the records of a batch may have together.
  virtual std::uint64_t batch_bytes() const = 0;
};

}  // namespace penstock
