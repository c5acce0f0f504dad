// The device code of NVFP4 whose blocks are scaled to a maximum of 4 or 6, run on the host thread
// by thread, against the CPU's operator, bit for bit.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/kernels/cuda/quantize/nvfp4_quantize.cuh"
#include "core/ops/block_quantize.h"
#include "tests/core/cuda/block_data.h"
#include "tests/core/cuda/host_grid.h"

namespace telens::testing {
namespace {

struct Nothing {};

four_over_six::Output get_output(const GuardedCodes& codes) {
  const at::Tensor& bytes = codes.codes.tensor();
  if (!bytes.defined()) return {nullptr, nullptr};
  return {bytes.mutable_data_ptr<std::uint8_t>(),
          codes.scale_inv.tensor().mutable_data_ptr<std::uint8_t>()};
}

float* get_scale(const GuardedCodes& codes) {
  const at::Tensor& scale = codes.tensor_scale.tensor();
  return scale.defined() ? scale.mutable_data_ptr<float>() : nullptr;
}

template <typename Input, cuda::FourOverSixBlocks blocks>
void run(const cuda::FourOverSixArguments& arguments, Order order) {
  run_grid<Nothing>(2, order, [&](const HostThread& thread, Nothing&) {
    cuda::quantize_four_over_six<Input, blocks>(arguments,
                                                cuda::get_count(blocks, arguments.matrix), thread);
  });
}

template <typename Input>
void expect_the_cpus(const NamedMatrix& named, const ops::FourOverSixOptions& options,
                     const ops::Orientations& orientations) {
  const at::Tensor& x = named.x;
  const auto expected = ops::quantize_four_over_six(x, options, orientations);
  const GuardedCodes rowwise(expected.rowwise);
  const GuardedCodes columnwise(expected.columnwise);
  const auto amaxes = [&](std::int64_t orientation) {
    return options.row_scaled ? ops::largest_numbers(x, orientation) : options.amaxes;
  };
  const at::Tensor of_rows = amaxes(0);
  const at::Tensor of_columns = amaxes(1);
  cuda::FourOverSixArguments arguments{
      x.const_data_ptr(),
      {x.size(0), x.size(1)},
      {of_rows.const_data_ptr<float>(), options.row_scaled, options.choice},
      options.row_scaled ? of_rows.numel() : 1,
      get_scale(rowwise),
      options.row_scaled ? nullptr : get_scale(columnwise),
      get_output(rowwise),
      get_output(columnwise)};
  using cuda::FourOverSixBlocks;
  if (options.two_dimensional) {
    run<Input, FourOverSixBlocks::squares>(arguments, Order::shuffled);
  } else {
    if (orientations.rowwise) run<Input, FourOverSixBlocks::along_rows>(arguments, Order::forward);
    if (orientations.columnwise) {
      arguments.output = get_output(columnwise);
      arguments.scales.amaxes = of_columns.const_data_ptr<float>();
      arguments.lines = options.row_scaled ? of_columns.numel() : 1;
      arguments.tensor_scale = get_scale(columnwise);
      run<Input, FourOverSixBlocks::down_columns>(arguments, Order::backward);
    }
  }
  const std::string what =
      fmt::format("{} {} of {}, squares {}, by rows {}, squared error {}, largest scale {}",
                  c10::str(x.sizes()), named.name, get_name(Input::kId), options.two_dimensional,
                  options.row_scaled, options.choice.squared_error, options.choice.largest_scale);
  rowwise.expect_same(expected.rowwise, what + ", rowwise");
  columnwise.expect_same(expected.columnwise, what + ", columnwise");
}

TEST(FourOverSixDevice, blocks_and_squares_match_cpu) {
  for_each_matrix([&]<typename Input>(const NamedMatrix& named) {
    for (const bool squares : {false, true}) {
      for (const auto choice : {FourOverSix{false, 256.0F}, FourOverSix{true, 448.0F}}) {
        const ops::FourOverSixOptions options{squares, choice, at::full({2}, 3.0F)};
        expect_the_cpus<Input>(named, options, {true, true});
      }
    }
    for (const auto& orientations : kOrientations) {
      expect_the_cpus<Input>(named, {false, {}, at::full({2}, 100.0F)}, orientations);
      expect_the_cpus<Input>(named, {true, {}, at::full({2}, 100.0F)}, orientations);
      expect_the_cpus<Input>(named, {.row_scaled = true}, orientations);
    }
  });
}

}  // namespace
}  // namespace telens::testing
