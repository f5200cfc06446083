// Is it UTF-8?
#pragma once

#include <cstddef>
#include <span>

namespace penstock {

// Whether the bytes are well-formed UTF-8 (Unicode 15, table 3-7): no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::span<const std::byte> text);

}  // namespace penstock
