// Device code. Codes in registers, as 32-bit words.
//
// A compiler keeps each element of an array of 16-bit or 8-bit integers in a separate register and
// unpacks a 16-byte load right after it arrives. Words stay packed.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/kernels/cuda/conversions.cuh"
#include "core/kernels/cuda/packs.cuh"

namespace telens::cuda {

// ---- One word: its lanes, and their maxima and minima.

// Elements in a 32-bit word.
template <typename Format>
inline constexpr int kLanes = 32 / Format::kWidth;

// Returns a word with the code in every lane.
template <typename Format>
TELENS_DEVICE constexpr std::uint32_t in_every_lane(std::uint32_t code) {
  return kLanes<Format> == 1 ? code : code | code << 16;
}

// Returns the FP32 value of the code in one lane of a word.
template <typename Format>
TELENS_DEVICE float widen_lane(std::uint32_t word, int lane) {
  if constexpr (Format::kId == FormatId::bf16) {
    return bits_as<float>(lane == 0 ? word << 16 : word & 0xffff0000U);
  } else if constexpr (kLanes<Format> == 1) {
    return bits_as<float>(word);
  } else {
    return widen<Format>(static_cast<typename Format::Bits>(lane == 0 ? word : word >> 16));
  }
}

template <typename Format>
struct LaneMath {
  static TELENS_DEVICE std::uint32_t max_unsigned(std::uint32_t a, std::uint32_t b) {
    if constexpr (kLanes<Format> == 2) return max_u16x2(a, b);
    return a > b ? a : b;
  }
  static TELENS_DEVICE std::uint32_t min_unsigned(std::uint32_t a, std::uint32_t b) {
    if constexpr (kLanes<Format> == 2) return min_u16x2(a, b);
    return a < b ? a : b;
  }
  static TELENS_DEVICE std::uint32_t max_signed(std::uint32_t a, std::uint32_t b) {
    if constexpr (kLanes<Format> == 2) return max_s16x2(a, b);
    return static_cast<std::int32_t>(a) > static_cast<std::int32_t>(b) ? a : b;
  }
  static TELENS_DEVICE std::uint32_t min_signed(std::uint32_t a, std::uint32_t b) {
    if constexpr (kLanes<Format> == 2) return min_s16x2(a, b);
    return static_cast<std::int32_t>(a) < static_cast<std::int32_t>(b) ? a : b;
  }
};

// Returns the largest lane of a word.
template <typename Format>
TELENS_DEVICE std::uint32_t largest_lane(std::uint32_t word) {
  if constexpr (kLanes<Format> == 1) return word;
  return LaneMath<Format>::max_unsigned(word, word >> 16) & 0xffffU;
}

// ---- Several words: loads, stores and conversions.

// `size` neighbors of type T, the first in the lowest lane of the first word. A single element is
// in the lowest lane of its word; the other lanes are zero.
template <typename T, int size>
struct Words {
  static constexpr int kLanes = 4 / static_cast<int>(sizeof(T));
  static constexpr int kWords = size == 1 ? 1 : size / kLanes;
  static_assert(size == 1 || kWords * kLanes == size, "whole words");

  std::uint32_t words[kWords];

  // Returns element i in the lowest lane of a word; the other lanes are zero.
  TELENS_DEVICE std::uint32_t at(int i) const {
    constexpr std::uint32_t kOfLane = 0xffffffffU >> (32 - 8 * sizeof(T));
    return words[i / kLanes] >> (i % kLanes * 8 * static_cast<int>(sizeof(T))) & kOfLane;
  }
};

template <typename T, int size>
TELENS_DEVICE Words<T, size> get_words(const Pack<T, size>& pack) {
  if constexpr (size == 1) {
    return {{static_cast<std::uint32_t>(pack.values[0])}};
  } else {
    return bits_as<Words<T, size>>(pack);
  }
}

// The address has the alignment of Pack<T, size>.
template <int size, typename T>
TELENS_DEVICE Words<T, size> load_words(const T* address) {
  if constexpr (size == 1) {
    return {{static_cast<std::uint32_t>(*address)}};
  } else {
#if defined(__CUDA_ARCH__)
    constexpr int kWords = Words<T, size>::kWords;
    return bits_as<Words<T, size>>(
        load_pack<kWords>(reinterpret_cast<const std::uint32_t*>(address)));
#else
    Words<T, size> words;
    std::memcpy(&words, address, sizeof words);
    return words;
#endif
  }
}

#if defined(__CUDA_ARCH__)
namespace detail {

// One 16-byte store. In some kernels the compiler turned an assignment into four 4-byte stores.
TELENS_DEVICE void store_four(std::uint32_t* address, const std::uint32_t* words) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(address)), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3])
               : "memory");
}

}  // namespace detail
#endif

// The address is in global memory and has the alignment of Pack<T, size>.
template <typename T, int size>
TELENS_DEVICE void store_words(T* address, const Words<T, size>& words) {
  if constexpr (size == 1) {
    *address = static_cast<T>(words.words[0]);
  } else {
#if defined(__CUDA_ARCH__)
    constexpr int kWords = Words<T, size>::kWords;
    if constexpr (kWords % 4 == 0) {
      TELENS_UNROLL
      for (int i = 0; i < kWords; i += 4) {
        detail::store_four(reinterpret_cast<std::uint32_t*>(address) + i, words.words + i);
      }
    } else {
      store_pack(reinterpret_cast<std::uint32_t*>(address),
                 bits_as<Pack<std::uint32_t, kWords>>(words));
    }
#else
    std::memcpy(address, &words, sizeof words);
#endif
  }
}

// The loader for for_each_pack.
struct AsWords {
  template <int size, typename T>
  static TELENS_DEVICE Words<T, size> load(const T* address) {
    return load_words<size>(address);
  }
};

// Returns the FP32 value of element i.
template <typename Format, int size>
TELENS_DEVICE float widen_at(const Words<typename Format::Bits, size>& codes, int i) {
  return widen_lane<Format>(codes.words[i / kLanes<Format>], i % kLanes<Format>);
}

// Returns the codes of BF16, FP16 or FP32 without their signs.
template <typename Format, int size>
TELENS_DEVICE Words<typename Format::Bits, size> count_magnitudes(
    Words<typename Format::Bits, size> codes) {
  TELENS_UNROLL
  for (std::uint32_t& word : codes.words) word &= in_every_lane<Format>(Format::kMagnitudeMask);
  return codes;
}

// Returns the codes nearest to the values, like narrow() for each of them.
template <typename Format, int size>
TELENS_DEVICE Words<typename Format::Bits, size> narrow_all(const float (&values)[size]) {
  Words<typename Format::Bits, size> codes;
  if constexpr (size == 1 || kLanes<Format> == 1) {
    TELENS_UNROLL
    for (int i = 0; i < size; ++i) codes.words[i] = narrow<Format>(values[i]);
  } else {
    bool has_nan = false;
    TELENS_UNROLL
    for (int i = 0; i < size; i += 2) {
      codes.words[i / 2] = narrow_pair<Format>(values[i], values[i + 1]);
      has_nan |= values[i] != values[i] || values[i + 1] != values[i + 1];
    }
    if (has_nan) {  // the instruction drops the sign
      TELENS_UNROLL
      for (int i = 0; i < size; i += 2) {
        codes.words[i / 2] = narrow<Format>(values[i]) |
                             static_cast<std::uint32_t>(narrow<Format>(values[i + 1])) << 16;
      }
    }
  }
  return codes;
}

}  // namespace telens::cuda
