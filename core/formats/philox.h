// Philox4x32-10: random bits as a function of a counter and a key. Every element of a tensor has
// separate bits, which are equal on every device and for any number of threads. No LibTorch.
//
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>

#include "core/formats/host_device.h"

namespace telens {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

// Four words of 32 random bits.
TELENS_HOST_DEVICE constexpr PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
  constexpr std::uint64_t kMultipliers[2] = {0xD2511F53, 0xCD9E8D57};
  constexpr std::uint32_t kKeySteps[2] = {0x9E3779B9, 0xBB67AE85};
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t first = kMultipliers[0] * counter[0];
    const std::uint64_t second = kMultipliers[1] * counter[2];
    counter = {static_cast<std::uint32_t>(second >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(second),
               static_cast<std::uint32_t>(first >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(first)};
    key = {key[0] + kKeySteps[0], key[1] + kKeySteps[1]};
  }
  return counter;
}

// Known answers from the authors' implementation (Random123, kat_vectors).
static_assert(philox4x32({0, 0, 0, 0}, {0, 0}) ==
              PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
static_assert(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                         {0xa4093822, 0x299f31d0}) ==
              PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});

// The random words of a tensor's elements: element i uses word i % 4 of the counter (i / 4 low, i /
// 4 high, stream, offset).
struct ElementWords {
  PhiloxKey key;
  std::uint32_t stream;
  std::uint32_t offset;

  // state: the key and the offset of an operator.
  static TELENS_HOST_DEVICE constexpr ElementWords of(const std::int64_t* state,
                                                      std::uint32_t stream) {
    const auto seed = static_cast<std::uint64_t>(state[0]);
    return {{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
            stream,
            static_cast<std::uint32_t>(state[1])};
  }

  // Returns the words of the four elements that include `index`.
  TELENS_HOST_DEVICE constexpr PhiloxCounter of_four(std::uint64_t index) const {
    const std::uint64_t group = index / 4;
    return philox4x32({static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(group >> 32),
                       stream, offset},
                      key);
  }
  // Returns the word of an element. Selecting by bits keeps the words in GPU registers.
  TELENS_HOST_DEVICE constexpr std::uint32_t of_one(std::uint64_t index) const {
    const PhiloxCounter words = of_four(index);
    const std::uint32_t first_pair = (index & 1) != 0 ? words[1] : words[0];
    const std::uint32_t second_pair = (index & 1) != 0 ? words[3] : words[2];
    return (index & 2) != 0 ? second_pair : first_pair;
  }
};

}  // namespace telens
