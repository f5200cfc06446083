// crc32c (Castagnoli, reflected polynomial 0x82F63B78, as in iSCSI and ext4): the checksum of every byte penstock stores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

enum class CrcPath { portable, hardware };

// The fastest path of this processor.
CrcPath best_crc_path();

// The crc of a buffer, continued from the crc of the bytes before it (0 at the start). All paths give the same value.
std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t before = 0, CrcPath path = best_crc_path());

// The path of crc32c_hardware.cpp, from state to state; only for processors whose best path it is.
std::uint32_t crc32c_hardware(const std::byte* p, std::size_t count, std::uint32_t state);

}  // namespace penstock
