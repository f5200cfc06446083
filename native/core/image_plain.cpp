#include "core/image_kernel.h"

namespace penstock {

const ImageKernel& image_plain() {
  static constexpr ImageKernel kernel{
      PlainImage::down,   nullptr, PlainImage::across<3>, PlainImage::across<1>, PlainImage::split3, PlainImage::to_float,
      PlainImage::to_half};
  return kernel;
}

}  // namespace penstock
