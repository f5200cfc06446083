// Records of different lengths that are runs of rows: the documents of a line of tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/row_reader.h"
#include "core/thread_pool.h"
#include "core/varying_reader.h"

namespace penstock {

// Safe to use from several threads. The rows and the bounds must outlive it.
class RunReader final : public VaryingReader {
 public:
  // Record i has the rows [bounds[i], bounds[i + 1]).
  RunReader(const RowReader& rows, std::span<const std::int64_t> bounds, std::uint64_t batch_bytes);

  void sizes(std::span<const std::int64_t> rows, std::uint8_t ndim, std::int64_t* sizes, std::uint32_t* dims) const override;
  void read(std::span<const std::int64_t> rows, const std::int64_t* starts, const std::int64_t* sizes,
            std::byte* out) const override;
  void read_parts(std::span<const RecordPart> parts, std::byte* out) const override;
  std::uint64_t batch_bytes() const override { return batch_bytes_; }

 private:
  const RowReader& rows_;
  std::span<const std::int64_t> bounds_;
  std::uint64_t batch_bytes_;
  mutable ThreadPool alone_{1};  // the thread of the ring reads itself
};

}  // namespace penstock
