// Pictures for a ring: their bytes are read by any reader of records, and become arrays at their places in a batch.
#pragma once

#include "core/batch_ring.h"
#include "core/image.h"
#include "core/varying_reader.h"

namespace penstock {

// Making a picture takes as long as copying this many bytes or more, so that each is a piece of its own.
inline constexpr std::uint64_t kImageWork = 256 << 10;

// Safe to use from several threads. The reader and the maker must outlive it.
class ImageReader {
 public:
  // needs_all: a missing picture is an error. partner: those that the pictures are masks of, which must have their sizes.
  ImageReader(const VaryingReader& bytes, const ImageMaker& maker, bool needs_all, const VaryingReader* partner = nullptr)
      : bytes_(bytes), maker_(maker), needs_all_(needs_all), partner_(partner) {}

  // A missing picture is zeros, and not present.
  void read(const RingRead& read) const;

 private:
  const VaryingReader& bytes_;
  const ImageMaker& maker_;
  bool needs_all_;
  const VaryingReader* partner_;
};

}  // namespace penstock
