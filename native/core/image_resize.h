// One separable, antialiased resize: triangle filter, whose support grows with the factor; weights of 15 bits.
//
// Every level of the kernels gives identical bytes: all sums are integers, and floats are made by one multiplication and one
// addition, each rounded. Rows go first down (bytes -> 16 bits, 7 of them behind the point), then across (-> bytes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/simd.h"

namespace penstock {

inline constexpr int kWeightBits = 15;               // the weights of an output have the sum 2^15
inline constexpr std::int64_t kMostWeight = 32'767;  // but for one that would be 2^15 itself
inline constexpr int kRowBits = 7;                   // behind the point of a row between the passes
inline constexpr std::size_t kNarrowTaps = 16;       // up to here products are cut to 16 bits before they are added
inline constexpr std::size_t kOutputStep = 8;
inline constexpr std::size_t kRowPadding = 64;   // elements behind a row that kernels may read
inline constexpr std::size_t kOutputSlack = 28;  // bytes behind the last output that kernels may write

// Memory that is used again, arbitrary until it is written.
template <class T>
class Scratch {
 public:
  T* take(std::size_t count) {
    if (count > size_) {
      data_.reset();
      size_ = 0;
      data_.reset(new T[count]);
      size_ = count;
    }
    return data_.get();
  }
  // Given back if it is larger than that: one huge picture must not keep its memory in every thread.
  void trim(std::size_t most_bytes) {
    if (size_ * sizeof(T) <= most_bytes) return;
    data_.reset();
    size_ = 0;
  }

 private:
  std::unique_ptr<T[]> data_;
  std::size_t size_ = 0;
};

// A box along one axis of a picture that is decoded at 1/scale, and what becomes of it.
struct ResizeRange {
  std::uint32_t start = 0;   // of the box, in pixels of the whole picture
  std::uint32_t length = 0;  // of the box
  std::uint32_t scale = 1;   // pixel k of the decoded picture covers [k * scale, (k + 1) * scale)
  std::uint32_t out = 0;     // pixels made of the box
  bool reversed = false;
  bool mirrored = false;  // the picture is displayed from its end on

  std::uint32_t first() const { return start / scale; }                        // decoded pixels [first, last)
  std::uint32_t last() const { return (start + length + scale - 1) / scale; }  // that touch the box
};

// The weights of one axis. Used again for the next picture.
class ResizeAxis {
 public:
  // channels: elements of a pixel, by which places are multiplied.
  void plan(const ResizeRange& range, std::uint32_t channels = 1);

  // Per output, an even number; weights behind count(i) are 0.
  std::size_t taps() const { return taps_; }
  std::uint32_t first(std::size_t i) const { return first_[i]; }  // from range.first() on, in elements
  std::uint32_t count(std::size_t i) const { return count_[i]; }
  const std::int16_t* weights(std::size_t i) const { return weights_.data() + i * taps_; }

  // Of all outputs, up to a multiple of kOutputStep; those behind the last one have weights of 0.
  std::size_t padded() const { return first_.size(); }
  const std::uint32_t* all_first() const { return first_.data(); }
  const std::int16_t* all_weights() const { return weights_.data(); }

 private:
  std::size_t taps_ = 0;
  std::vector<std::uint32_t> first_;
  std::vector<std::uint32_t> count_;
  std::vector<std::int16_t> weights_;
};

// What is the same for all elements of a kind: value * factor + offset. Elements repeat after 24: a multiple of 3 channels and of
// 8 lanes.
struct ImageAffine {
  alignas(32) float factor[24];
  alignas(32) float offset[24];
};

struct ImageKernel {
  // out[i] = the sum of rows[k][i] * weights[k], with kRowBits behind the point: up to kNarrowTaps taps, taps / 2 (rounded down)
  // and the products, each >> 8; above, all products, rounded. An odd number of weights is followed by a 0. Reads and writes up
  // to 31 elements more.
  void (*down)(const std::uint8_t* const* rows, const std::int16_t* weights, std::size_t taps, std::size_t count,
               std::int16_t* out);
  // The weights of a padded axis as across3 takes them, 4 * taps elements for each output; null: as they are.
  void (*arrange3)(const std::int16_t* weights, std::size_t taps, std::size_t padded, std::int16_t* out);
  // Pixels of 3 channels, or of 1, from a padded axis. Reads kRowPadding elements behind the row and the taps; writes up to
  // kOutputSlack bytes behind the last output.
  void (*across3)(const std::int16_t* row, const std::uint32_t* first, const std::int16_t* weights, std::size_t taps,
                  std::size_t outputs, std::uint8_t* out);
  void (*across1)(const std::int16_t* row, const std::uint32_t* first, const std::int16_t* weights, std::size_t taps,
                  std::size_t outputs, std::uint8_t* out);
  // RGBRGB... to R..., G..., B..., planes of `count` pixels that are `plane` bytes apart.
  void (*split3)(const std::uint8_t* in, std::size_t count, std::size_t plane, std::uint8_t* out);
  // in[i] * factor[i % 24] + offset[i % 24], as float32, and rounded to nearest even as float16. out may have any alignment.
  void (*to_float)(const std::uint8_t* in, std::size_t count, const ImageAffine& affine, std::byte* out);
  void (*to_half)(const std::uint8_t* in, std::size_t count, const ImageAffine& affine, std::byte* out);
};

const ImageKernel& image_kernel(Simd level);

// float32 to float16, rounded to nearest even.
std::uint16_t half_of(float value);

}  // namespace penstock
