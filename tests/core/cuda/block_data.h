// Matrices and results for tests of the device code of block formats.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/formats/formats.h"
#include "core/ops/block_quantize.h"
#include "tests/core/cuda/host_data.h"
#include "tests/core/matrix_data.h"
#include "tests/core/same_bits.h"

namespace telens::testing {

struct NamedMatrix {
  std::string name;
  at::Tensor x;
};

// Calls visit.operator()<Input>(dtype) for BF16, FP16 and FP32.
template <typename Visit>
void for_each_input_dtype(const Visit& visit) {
  visit.template operator()<BF16>(at::kBFloat16);
  visit.template operator()<FP16>(at::kHalf);
  visit.template operator()<FP32>(at::kFloat);
}

// Sizes of whole tiles and packs, and sizes that are a multiple of neither.
inline const std::vector<std::pair<std::int64_t, std::int64_t>> kBlockShapes{
    {128, 256}, {37, 70}, {130, 264}, {1, 1}, {2, 8}, {96, 129}, {0, 64}, {64, 0}};

// The shapes with elements. For FP16 and FP32, which differ only in how they are read, two shapes
// are enough for slow tests.
inline std::vector<std::pair<std::int64_t, std::int64_t>> shapes_with_elements(FormatId format) {
  if (format != FormatId::bf16) return {{37, 70}, {130, 264}};
  std::vector<std::pair<std::int64_t, std::int64_t>> shapes;
  for (const auto& shape : kBlockShapes) {
    if (shape.first * shape.second > 0) shapes.push_back(shape);
  }
  return shapes;
}

template <typename Format>
at::Tensor as_matrix(const Aligned<typename Format::Bits>& codes, std::int64_t rows,
                     std::int64_t columns, at::ScalarType dtype) {
  // Copied, because the caller's memory is freed.
  return at::from_blob(const_cast<typename Format::Bits*>(codes.data()), {rows, columns}, dtype)
      .clone();
}

// In each block of 16, a special value stands at another place, among values of similar magnitude,
// so that it decides the block's scale. If it is not finite or too small, the other values decide
// the scale.
template <typename Format>
Aligned<typename Format::Bits> one_special_value_a_block(std::size_t size) {
  auto codes = random_codes<Format>(size);
  const auto special = special_codes<Format>();
  constexpr std::size_t kBlock = 16;
  for (std::size_t block = 0; block * kBlock < size; ++block) {
    const auto code = special[block % special.size()].code;
    const float magnitude = std::fabs(decode<Format>(code));
    const bool usable = std::isfinite(magnitude) && block % 3 != 0;
    for (std::size_t i = block * kBlock; i < std::min(size, (block + 1) * kBlock); ++i) {
      const float value = decode<Format>(codes[i]) * (usable ? magnitude / 2 : 1.0F);
      codes[i] = encode<Format>(value, Saturation::saturating);
    }
    const std::size_t place = block * kBlock + block * 7 % kBlock;
    if (place < size) codes[place] = code;
  }
  return codes;
}

// Blocks whose largest element makes the scale 1, with all values that tie between two codes under
// it.
inline at::Tensor ties(std::int64_t rows, std::int64_t columns, at::ScalarType dtype) {
  std::vector<float> values;
  for (const SpecialValue& special : kSpecialValues) {
    const auto value = bits_as<float>(special.bits);
    if (value <= E4M3::kMax) values.insert(values.end(), {value, -value});
  }
  at::Tensor x = at::empty({rows, columns});
  auto* const to = x.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const bool largest = i / std::max<std::int64_t>(1, columns) % 16 == 0 || i % columns % 16 == 0;
    to[i] = largest ? E4M3::kMax : values[static_cast<std::size_t>(i) % values.size()];
  }
  return x.to(dtype);
}

template <typename Format>
std::vector<NamedMatrix> block_matrices(std::int64_t rows, std::int64_t columns,
                                        at::ScalarType dtype) {
  const auto size = static_cast<std::size_t>(rows * columns);
  at::manual_seed(1);
  return {{"wide data", wide_data({rows, columns}, dtype)},
          {"zeros", at::zeros({rows, columns}, dtype)},
          {"minus zeros", at::full({rows, columns}, -0.0, dtype)},
          {"NaNs", at::full({rows, columns}, std::nan(""), dtype)},
          {"ties", ties(rows, columns, dtype)},
          {"special values",
           as_matrix<Format>(codes_with_special_values<Format>(size), rows, columns, dtype)},
          {"one special value a block",
           as_matrix<Format>(one_special_value_a_block<Format>(size), rows, columns, dtype)}};
}

// Calls visit.operator()<Input>(matrix) for all matrices of all shapes and dtypes.
template <typename Visit>
void for_each_matrix(const Visit& visit) {
  for_each_input_dtype([&]<typename Input>(at::ScalarType dtype) {
    for (const auto& [rows, columns] : kBlockShapes) {
      for (const NamedMatrix& named : block_matrices<Input>(rows, columns, dtype)) {
        visit.template operator()<Input>(named);
      }
    }
  });
}

// Memory for a result with the shape and strides of another tensor, with guard bytes before and
// after it that device code must not change. Undefined if the other tensor is.
class Guarded {
 public:
  explicit Guarded(const at::Tensor& like) {
    if (!like.defined()) return;
    bytes_ = static_cast<std::size_t>(like.numel()) * like.element_size();
    memory_.assign(bytes_ + 2 * kMargin, kUntouched);
    tensor_ = at::from_blob(memory_.data() + kMargin, like.sizes(), like.strides(), like.dtype());
  }

  const at::Tensor& tensor() const { return tensor_; }
  bool margins_are_untouched() const {
    const auto untouched = [](std::uint8_t byte) { return byte == kUntouched; };
    return !tensor_.defined() ||
           (std::all_of(memory_.begin(), memory_.begin() + kMargin, untouched) &&
            std::all_of(memory_.end() - kMargin, memory_.end(), untouched));
  }

 private:
  static constexpr std::ptrdiff_t kMargin = 512;  // keeps the allocator's alignment
  static constexpr std::uint8_t kUntouched = 0xcd;

  std::size_t bytes_ = 0;
  Aligned<std::uint8_t> memory_;
  at::Tensor tensor_;
};

// Expects the same bits, element by element.
template <typename Bits>
::testing::AssertionResult same_elements(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor got = actual.contiguous();
  const at::Tensor want = expected.contiguous();
  const auto* const bits = static_cast<const Bits*>(want.const_data_ptr());
  const std::int64_t columns = expected.dim() == 2 ? expected.size(1) : 1;
  return same_bits(
      std::span(static_cast<const Bits*>(got.const_data_ptr()),
                static_cast<std::size_t>(got.numel())),
      [&](std::size_t i) { return bits[i]; },
      [&](std::size_t i) {
        const auto index = static_cast<std::int64_t>(i);
        return fmt::format("[{}, {}]", index / columns, index % columns);
      });
}

inline void expect_same_result(const Guarded& actual, const at::Tensor& expected,
                               const std::string& what) {
  if (!expected.defined()) return;
  EXPECT_TRUE(expected.element_size() == 1 ? same_elements<std::uint8_t>(actual.tensor(), expected)
              : expected.element_size() == 2
                  ? same_elements<std::uint16_t>(actual.tensor(), expected)
                  : same_elements<std::uint32_t>(actual.tensor(), expected))
      << what;
  EXPECT_TRUE(actual.margins_are_untouched()) << what << ": wrote beyond the result";
}

// Room for one orientation.
struct GuardedCodes {
  Guarded codes;
  Guarded scale_inv;
  Guarded tensor_scale;

  explicit GuardedCodes(const ops::BlockCodes& like)
      : codes(like.codes), scale_inv(like.scale_inv), tensor_scale(like.tensor_scale) {}

  ops::BlockCodes tensors() const {
    return {codes.tensor(), scale_inv.tensor(), tensor_scale.tensor()};
  }
  void expect_same(const ops::BlockCodes& expected, const std::string& what) const {
    expect_same_result(codes, expected.codes, what + ", codes");
    expect_same_result(scale_inv, expected.scale_inv, what + ", scales");
    expect_same_result(tensor_scale, expected.tensor_scale, what + ", the tensor's scale");
  }
};

inline constexpr std::array kOrientations{
    ops::Orientations{true, true}, ops::Orientations{true, false}, ops::Orientations{false, true}};

}  // namespace telens::testing
