// Inputs for tests of device code on the host. Their memory has the alignment of a GPU's
// allocations.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <random>
#include <vector>

#include "core/formats/convert.h"
#include "tests/core/special_values.h"

namespace telens::testing {

template <typename T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{512};

  AlignedAllocator() = default;
  template <typename U>
  explicit AlignedAllocator(const AlignedAllocator<U>&) {}

  T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), kAlignment));
  }
  void deallocate(T* memory, std::size_t) { ::operator delete(memory, kAlignment); }
  bool operator==(const AlignedAllocator&) const { return true; }
};

template <typename T>
using Aligned = std::vector<T, AlignedAllocator<T>>;

// Normal random numbers, of `deviation` around `mean`, as codes of Format.
template <typename Format>
Aligned<typename Format::Bits> random_codes(std::size_t size, double deviation = 1, double mean = 0,
                                            std::uint32_t seed = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal(mean, deviation);
  Aligned<typename Format::Bits> codes(size);
  std::generate(codes.begin(), codes.end(), [&] {
    return encode<Format>(static_cast<float>(normal(engine)), Saturation::non_saturating);
  });
  return codes;
}

// The same, with the special values spread among them.
template <typename Format>
Aligned<typename Format::Bits> codes_with_special_values(std::size_t size) {
  auto codes = random_codes<Format>(size);
  const auto special = special_codes<Format>();
  constexpr std::size_t kStep = 7;  // coprime to pack sizes: values reach every place of a pack
  for (std::size_t i = 0; i * kStep < size; ++i) {
    codes[i * kStep] = special[i % special.size()].code;
  }
  return codes;
}

}  // namespace telens::testing
