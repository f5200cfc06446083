#include "core/systematic.h"

namespace penstock {

void systematic(std::uint64_t n, std::uint64_t size, std::uint64_t offset, std::span<const std::int64_t> positions,
                std::span<std::int64_t> out) {
  using Wide = unsigned __int128;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Wide reach = static_cast<Wide>(n) * (static_cast<std::uint64_t>(positions[i]) + 1) - offset;
    out[i] = static_cast<std::int64_t>((reach + size - 1) / size) - 1;
  }
}

}  // namespace penstock
