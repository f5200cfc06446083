// Division by a number that stays the same, without the division instruction.
#pragma once

#include <cstdint>

namespace penstock {

class Divider {
 public:
  explicit Divider(std::uint64_t divisor) : divisor_(divisor), reciprocal_(~std::uint64_t{0} / divisor) {}

  std::uint64_t divisor() const { return divisor_; }

  // The estimate from the reciprocal is the quotient or one less.
  std::uint64_t quotient(std::uint64_t x) const {
    const auto estimate = static_cast<std::uint64_t>((static_cast<unsigned __int128>(x) * reciprocal_) >> 64);
    return x - estimate * divisor_ >= divisor_ ? estimate + 1 : estimate;
  }

 private:
  std::uint64_t divisor_;
  std::uint64_t reciprocal_;
};

}  // namespace penstock
