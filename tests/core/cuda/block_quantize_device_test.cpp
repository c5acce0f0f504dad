// The device code that quantizes with one scale for each block, run on the host thread by thread,
// against the CPU's operators, bit for bit.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/kernels/cuda/blocks/block_tensors.h"
#include "core/kernels/cuda/quantize/block_quantize.cuh"
#include "tests/core/cuda/block_data.h"
#include "tests/core/cuda/host_grid.h"

namespace telens::testing {
namespace {

constexpr std::int64_t kBlocks = 2;

template <typename Visit>
void for_each_fp8(const Visit& visit) {
  visit.template operator()<E4M3>();
  visit.template operator()<E5M2>();
}

// Square blocks: both orientations share the codes, which the kernel writes as the rowwise ones.
ops::BlockCodesPair with_shared_codes(ops::BlockCodesPair pair) {
  if (!pair.rowwise.codes.defined()) pair.rowwise.codes = pair.columnwise.codes.t();
  pair.columnwise.codes = at::Tensor();
  return pair;
}

ops::BlockCodesPair with_shared_codes_and_scales(const ops::BlockCodesPair& pair) {
  if (pair.rowwise.codes.defined()) return {pair.rowwise, {}};
  return {{pair.columnwise.codes.t(), pair.columnwise.scale_inv.t(), {}}, {}};
}

// Calls run(whole) with whole packs where the columns allow it, and element by element.
template <typename Run>
void in_packs_and_one_by_one(std::int64_t columns, const Run& run) {
  if (columns % 8 == 0) run.template operator()<true>();
  run.template operator()<false>();
}

// Expects that the device code gives the CPU's codes and scales for one matrix.
template <typename Input, typename Scaling>
void expect_blocks(const NamedMatrix& named, const ops::BlockCodesPair& expected,
                   const Scaling& scaling, bool squares, Order order, const std::string& options) {
  in_packs_and_one_by_one(named.x.size(1), [&]<bool whole>() {
    using ScaleCode = typename Scaling::ScaleCode;
    const GuardedCodes rowwise(expected.rowwise);
    const GuardedCodes columnwise(expected.columnwise);
    const cuda::BlockMatrix matrix = cuda::as_matrix(named.x);
    const cuda::BlockOutputs<ScaleCode> outputs{cuda::get_output<ScaleCode>(rowwise.tensors()),
                                                cuda::get_output<ScaleCode>(columnwise.tensors())};
    if (squares) {
      using Shared = cuda::SquaresShared<Scaling::kBlock>;
      run_grid<Shared>(kBlocks, order, [&](const HostThread& thread, Shared& shared) {
        cuda::quantize_squares<Input, whole>(matrix, outputs, scaling, thread, shared);
      });
    } else {
      using Shared = cuda::LinesShared<Input, Scaling::kBlock>;
      run_grid<Shared>(kBlocks, order, [&](const HostThread& thread, Shared& shared) {
        cuda::quantize_lines<Input, whole>(matrix, outputs, scaling, scaling, thread, shared);
      });
    }
    const std::string what =
        fmt::format("{} {} of {}, {}, squares {}, in packs {}", c10::str(named.x.sizes()),
                    named.name, get_name(Input::kId), options, squares, whole);
    rowwise.expect_same(expected.rowwise, what + ", rowwise");
    columnwise.expect_same(expected.columnwise, what + ", columnwise");
  });
}

template <typename Input, typename Output>
void expect_mxfp8_of_the_cpu(const NamedMatrix& named, const ops::Mxfp8Options& options,
                             const ops::Orientations& orientations, Order order) {
  const auto pair = ops::quantize_mxfp8(named.x, Output::kId, options, orientations);
  expect_blocks<Input>(named, options.two_dimensional ? with_shared_codes(pair) : pair,
                       cuda::Mxfp8Scaling<Output>{options.scale_rounding}, options.two_dimensional,
                       order,
                       fmt::format("{}, scale rounding {}", get_name(Output::kId),
                                   static_cast<int>(options.scale_rounding)));
}

template <typename Input, typename Output>
void expect_fp8_blocks_of_the_cpu(const NamedMatrix& named, const ops::Fp8BlockOptions& options,
                                  const ops::Orientations& orientations, Order order) {
  const auto pair = ops::quantize_fp8_blocks(named.x, Output::kId, options, orientations);
  const cuda::Fp8BlockScaling<Output> scaling{options.power_of_2_scales, options.amax_epsilon,
                                              Input::kMax};
  expect_blocks<Input>(named, options.two_dimensional ? with_shared_codes_and_scales(pair) : pair,
                       scaling, options.two_dimensional, order,
                       fmt::format("{}, powers of two {}, epsilon {}", get_name(Output::kId),
                                   options.power_of_2_scales, options.amax_epsilon));
}

// Matrices of several tiles, in every order of threads, with both orientations and with each one
// alone.
template <typename Visit>
void for_each_orientation_and_order(const Visit& visit) {
  for (const NamedMatrix& named : block_matrices<BF16>(70, 136, at::kBFloat16)) {
    for (const ops::Orientations& orientations : kOrientations) {
      for (const Order order : kOrders) visit(named, orientations, order);
    }
  }
}

TEST(BlockQuantizeDevice, mxfp8_codes_and_scales_match_cpu) {
  for_each_matrix([&]<typename Input>(const NamedMatrix& named) {
    for_each_fp8([&]<typename Output>() {
      expect_mxfp8_of_the_cpu<Input, Output>(named, {}, {true, true}, Order::shuffled);
    });
  });
}

TEST(BlockQuantizeDevice, mxfp8_squares_match_cpu) {
  for_each_matrix([&]<typename Input>(const NamedMatrix& named) {
    const ops::Mxfp8Options squares{ScaleRounding::up, true};
    expect_mxfp8_of_the_cpu<Input, E4M3>(named, squares, {true, true}, Order::shuffled);
  });
}

TEST(BlockQuantizeDevice, mxfp8_matches_cpu_for_every_scale_rounding) {
  for_each_orientation_and_order(
      [&](const NamedMatrix& named, const auto& orientations, Order order) {
        for (const bool squares : {false, true}) {
          for (const auto rounding :
               {ScaleRounding::up, ScaleRounding::floor, ScaleRounding::nearest}) {
            expect_mxfp8_of_the_cpu<BF16, E5M2>(named, {rounding, squares}, orientations, order);
          }
        }
      });
}

TEST(BlockQuantizeDevice, fp8_blocks_match_cpu_with_either_kind_of_scales) {
  for_each_matrix([&]<typename Input>(const NamedMatrix& named) {
    for (const bool squares : {false, true}) {
      expect_fp8_blocks_of_the_cpu<Input, E4M3>(named, {squares, true}, {true, true},
                                                Order::shuffled);
      expect_fp8_blocks_of_the_cpu<Input, E5M2>(named, {squares, false}, {true, true},
                                                Order::shuffled);
    }
  });
}

TEST(BlockQuantizeDevice, fp8_blocks_heed_their_epsilon_in_any_order_of_threads) {
  for_each_orientation_and_order(
      [&](const NamedMatrix& named, const auto& orientations, Order order) {
        for (const bool squares : {false, true}) {
          for (const float epsilon : {0.0F, 0.5F}) {
            expect_fp8_blocks_of_the_cpu<BF16, E5M2>(named, {squares, true, epsilon}, orientations,
                                                     order);
          }
        }
      });
}

}  // namespace
}  // namespace telens::testing
