// The device code that dequantizes block-scaled codes, run on the host thread by thread, against
// the CPU's operator, bit for bit.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/kernels/cuda/blocks/block_tensors.h"
#include "core/kernels/cuda/quantize/block_quantize.cuh"
#include "tests/core/cuda/block_data.h"
#include "tests/core/cuda/host_grid.h"

namespace telens::testing {
namespace {

struct Nothing {};

// Every code under every scale that quantizing can produce, including NaN and the smallest.
ops::BlockCodes every_code(std::int64_t rows, std::int64_t columns, ScalingMode mode,
                           bool transposed) {
  const bool packed = mode == ScalingMode::nvfp4;
  const auto any_bytes = [&](std::int64_t height, std::int64_t width, std::int64_t below) {
    const at::Tensor bytes =
        at::randint(below, {transposed ? width : height, transposed ? height : width}, at::kByte);
    return transposed ? bytes.t() : bytes;
  };
  const std::int64_t height = block_height(mode);
  const std::int64_t length = block_length(mode);
  const std::int64_t lines = (rows + height - 1) / height;
  const std::int64_t blocks = ((packed ? (columns + 1) / 2 * 2 : columns) + length - 1) / length;
  ops::BlockCodes codes{any_bytes(rows, packed ? (columns + 1) / 2 : columns, 256), {}, {}};
  if (mode == ScalingMode::mxfp8) {
    codes.scale_inv = any_bytes(lines, blocks, 256);
  } else if (packed) {
    codes.scale_inv = any_bytes(lines, blocks, 128);  // scales are not negative
    codes.tensor_scale = at::full({1}, 0x1.8p-3F);
  } else {
    codes.scale_inv = wide_data({lines, blocks}, at::kFloat).abs();
  }
  return codes;
}

template <typename Input, typename ScaleFormat, typename Output, cuda::CodePairs pairs>
void run_dequantize(const cuda::BlockDequantizeArguments& arguments, bool whole, Order order) {
  run_grid<Nothing>(2, order, [&](const HostThread& thread, Nothing&) {
    if (whole) {
      cuda::dequantize_blocks<Input, ScaleFormat, Output, pairs, true>(arguments, thread);
    } else {
      cuda::dequantize_blocks<Input, ScaleFormat, Output, pairs, false>(arguments, thread);
    }
  });
}

template <typename Input, typename Output>
void run_mode(const cuda::BlockDequantizeArguments& arguments, ScalingMode mode, bool whole,
              Order order) {
  using cuda::CodePairs;
  if constexpr (Input::kId == FormatId::e2m1) {
    if (arguments.codes.pairs == CodePairs::along_row) {
      run_dequantize<Input, E4M3, Output, CodePairs::along_row>(arguments, whole, order);
    } else {
      run_dequantize<Input, E4M3, Output, CodePairs::down_columns>(arguments, whole, order);
    }
  } else if (mode == ScalingMode::mxfp8) {
    run_dequantize<Input, E8M0, Output, CodePairs::none>(arguments, whole, order);
  } else {
    run_dequantize<Input, FP32, Output, CodePairs::none>(arguments, whole, order);
  }
}

template <typename Input, typename Output>
void expect_values_of_the_cpu(const ops::BlockCodes& codes, ScalingMode mode, bool transposed,
                              at::ScalarType dtype, Order order) {
  const at::Tensor expected = ops::dequantize_blocks(codes, Input::kId, mode, dtype);
  const at::Tensor in_memory = transposed ? expected.t() : expected;
  for (const bool whole : {true, false}) {
    if (whole && in_memory.size(1) % 8 != 0) continue;
    const Guarded values(in_memory);
    const cuda::CodesInMemory memory{transposed ? codes.codes.t() : codes.codes, transposed};
    const cuda::BlockDequantizeArguments arguments{
        cuda::coded_matrix(memory, codes.scale_inv, codes.tensor_scale, mode),
        values.tensor().mutable_data_ptr()};
    run_mode<Input, Output>(arguments, mode, whole, order);
    expect_same_result(values, in_memory,
                       fmt::format("{} {} of {} to {}, transposed {}, in packs {}",
                                   c10::str(codes.codes.sizes()), get_name(mode),
                                   get_name(Input::kId), get_name(Output::kId), transposed, whole));
  }
}

// Codes in row-major and column-major order, with scales in the opposite order.
template <typename Input>
void expect_mode(ScalingMode mode) {
  at::manual_seed(1);
  for (const auto& [rows, columns] : kBlockShapes) {
    for (const bool transposed : {false, true}) {
      const ops::BlockCodes codes = every_code(rows, columns, mode, transposed);
      if (codes.codes.numel() == 0) continue;
      ops::BlockCodes turned = codes;
      turned.scale_inv = turned.scale_inv.t().contiguous().t();
      if (turned.tensor_scale.defined()) {  // one for each row of codes
        turned.tensor_scale = at::arange(1, rows + 1, at::kFloat);
      }
      for_each_input_dtype([&]<typename Output>(at::ScalarType dtype) {
        for (const ops::BlockCodes& each : {codes, turned}) {
          expect_values_of_the_cpu<Input, Output>(each, mode, transposed, dtype, Order::shuffled);
        }
      });
    }
  }
}

TEST(BlockDequantizeDevice, values_of_mxfp8_match_cpu) {
  expect_mode<E4M3>(ScalingMode::mxfp8);
  expect_mode<E5M2>(ScalingMode::mxfp8);
}

TEST(BlockDequantizeDevice, values_of_128_blocks_match_cpu) {
  for (const ScalingMode mode : {ScalingMode::block_1d, ScalingMode::block_2d}) {
    expect_mode<E4M3>(mode);
    expect_mode<E5M2>(mode);
  }
}

TEST(BlockDequantizeDevice, values_of_nvfp4_match_cpu) { expect_mode<E2M1>(ScalingMode::nvfp4); }

TEST(BlockDequantizeDevice, empty_matrix_gives_no_values) {
  for (const auto& [rows, columns] : {std::pair(0, 64), std::pair(64, 0)}) {
    const ops::BlockCodes codes = every_code(rows, columns, ScalingMode::mxfp8, false);
    expect_values_of_the_cpu<E4M3, BF16>(codes, ScalingMode::mxfp8, false, at::kBFloat16,
                                         Order::forward);
  }
}

}  // namespace
}  // namespace telens::testing
