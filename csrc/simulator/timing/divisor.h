// simulator/timing/divisor.h: division by a number that usually is a power of two, using a shift in that case.
// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstdint>

namespace hipkittens::simulator::timing {

class Divisor {
  public:
    explicit Divisor(uint64_t number)
        : number_(number ? number : 1),
          shift_(std::has_single_bit(number_) ? std::countr_zero(number_) : -1) {}

    uint64_t quotient(uint64_t value) const { return shift_ >= 0 ? value >> shift_ : value / number_; }
    uint64_t remainder(uint64_t value) const { return shift_ >= 0 ? value & (number_ - 1) : value % number_; }
    uint64_t number() const { return number_; }

  private:
    uint64_t number_;
    int shift_;  // -1: not a power of two
};

}  // namespace hipkittens::simulator::timing
