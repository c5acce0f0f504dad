// The device code of NVFP4 and of its Hadamard transform, run on the host thread by thread, against
// the CPU's operators, bit for bit.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/kernels/cuda/blocks/block_tensors.h"
#include "core/kernels/cuda/quantize/amax.cuh"
#include "core/kernels/cuda/quantize/hadamard.cuh"
#include "core/kernels/cuda/quantize/nvfp4_quantize.cuh"
#include "core/ops/block_quantize.h"
#include "tests/core/cuda/block_data.h"
#include "tests/core/cuda/host_grid.h"

namespace telens::testing {
namespace {

constexpr std::int64_t kBlocks = 2;
constexpr int kLength = 16;               // a block's
constexpr std::uint16_t kSigns = 0xd7e8;  // Transformer Engine's

struct Nothing {};

// ---- its parts ----

TEST(Nvfp4Device, e2m1_codes_match_the_format) {
  const auto expect_code = [](float magnitude) {
    const std::uint8_t expected =
        std::isnan(magnitude) ? E2M1::kNanCode : encode<E2M1>(magnitude, Saturation::saturating);
    ASSERT_EQ(cuda::encode_e2m1_magnitude(magnitude), expected) << magnitude;
  };
  for (std::uint32_t code = 0; code <= BF16::kMagnitudeMask; ++code) {
    expect_code(decode<BF16>(static_cast<std::uint16_t>(code)));
  }
  for (const auto& special : special_codes<FP32>()) {
    expect_code(bits_as<float>(special.code & FP32::kMagnitudeMask));
  }
  for (const std::uint32_t code : random_codes<FP32>(100000)) {
    expect_code(bits_as<float>(code & FP32::kMagnitudeMask));
  }
}

template <typename Input>
float amax_of_numbers_on_host_grid(const at::Tensor& x, Order order) {
  float amax = 0;
  run_grid<cuda::BlockMaximum>(kBlocks, order,
                               [&](const HostThread& thread, cuda::BlockMaximum& shared) {
                                 constexpr int kWidth = cuda::kPackOf<typename Input::Bits>;
                                 cuda::amax<Input, kWidth, NanInMaximum::left_out>(
                                     {x.const_data_ptr(), x.numel(), &amax}, thread, shared);
                               });
  return amax;
}

TEST(Nvfp4Device, the_amax_of_numbers_leaves_nans_out) {
  for_each_matrix([&]<typename Input>(const NamedMatrix& named) {
    const at::Tensor x = named.x.to(at::kFloat);
    float expected = 0;
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const float magnitude = std::fabs(x.const_data_ptr<float>()[i]);
      if (magnitude > expected) expected = magnitude;
    }
    EXPECT_EQ(amax_of_numbers_on_host_grid<Input>(named.x, Order::shuffled), expected)
        << named.name << " of " << get_name(Input::kId);
  });
}

template <typename Input, int width>
at::Tensor hadamard_on_host_grid(const at::Tensor& x, bool inverse, Order order) {
  const Guarded result(x);
  const cuda::HadamardArguments arguments{x.const_data_ptr(),
                                          result.tensor().mutable_data_ptr(),
                                          x.size(0),
                                          x.size(1),
                                          kSigns,
                                          inverse};
  run_grid<Nothing>(kBlocks, order, [&](const HostThread& thread, Nothing&) {
    cuda::hadamard_transform<Input, width>(arguments, thread);
  });
  EXPECT_TRUE(result.margins_are_untouched());
  return result.tensor().clone();
}

// The same bits. NaNs are equal whatever their bits.
template <typename Bits>
void expect_same_but_for_nans(const at::Tensor& actual, const at::Tensor& expected,
                              const std::string& what) {
  ASSERT_TRUE(at::equal(actual.isnan(), expected.isnan())) << what;
  EXPECT_TRUE(same_elements<Bits>(actual.nan_to_num(1, 2, 3), expected.nan_to_num(1, 2, 3)))
      << what;
}

TEST(HadamardDevice, sums_match_cpu_in_the_same_order) {
  for_each_input_dtype([&]<typename Input>(at::ScalarType dtype) {
    for (const std::int64_t columns : {0, 1, 130, 264}) {
      for (const NamedMatrix& named : block_matrices<Input>(48, columns, dtype)) {
        for (const bool inverse : {false, true}) {
          const at::Tensor expected = ops::hadamard_transform(named.x, kSigns, inverse);
          const auto what = fmt::format("{} of {}", named.name, get_name(Input::kId));
          expect_same_but_for_nans<typename Input::Bits>(
              hadamard_on_host_grid<Input, 1>(named.x, inverse, Order::shuffled), expected, what);
          if (columns % 2 != 0) continue;
          expect_same_but_for_nans<typename Input::Bits>(
              hadamard_on_host_grid<Input, 2>(named.x, inverse, Order::backward), expected, what);
        }
      }
    }
  });
}

// ---- quantizing ----

struct Amaxes {
  float rowwise;
  float columnwise;
};

template <typename Input, bool whole, bool by_chance>
void run_nvfp4(const cuda::Nvfp4Arguments& arguments, Order order) {
  if (arguments.squares) {
    using Shared = cuda::SquaresShared<kLength>;
    run_grid<Shared>(kBlocks, order, [&](const HostThread& thread, Shared& shared) {
      cuda::quantize_nvfp4_squares<Input, whole, by_chance>(arguments, thread, shared);
    });
  } else {
    using Shared = cuda::LinesShared<Input, kLength>;
    run_grid<Shared>(kBlocks, order, [&](const HostThread& thread, Shared& shared) {
      cuda::quantize_nvfp4<Input, whole, by_chance>(arguments, thread, shared);
    });
  }
}

// Quantizes x in one read and expects the given codes. Undefined orientations of `expected` are not
// requested.
template <typename Input>
void expect_nvfp4(const at::Tensor& x, const ops::BlockCodesPair& expected, const Amaxes& amaxes,
                  const ops::Nvfp4Options& options, Order order, const std::string& name) {
  const auto run = [&]<bool whole>() {
    const GuardedCodes rowwise(expected.rowwise);
    const GuardedCodes columnwise(expected.columnwise);
    const auto scale_in = [](const GuardedCodes& codes) {
      const at::Tensor& scale = codes.tensor_scale.tensor();
      return scale.defined() ? scale.mutable_data_ptr<float>() : nullptr;
    };
    const bool by_chance = options.random_state.defined();
    const cuda::Nvfp4Arguments arguments{
        cuda::as_matrix(x),
        {cuda::get_output<std::uint8_t>(rowwise.tensors()),
         cuda::get_output<std::uint8_t>(columnwise.tensors())},
        {&amaxes.rowwise, scale_in(rowwise)},
        {&amaxes.columnwise, scale_in(columnwise)},
        by_chance ? options.random_state.const_data_ptr<std::int64_t>() : nullptr,
        options.two_dimensional};
    if (by_chance) {
      run_nvfp4<Input, whole, true>(arguments, order);
    } else {
      run_nvfp4<Input, whole, false>(arguments, order);
    }
    const std::string what =
        fmt::format("{} {} of {}, squares {}, by chance {}, in packs {}", c10::str(x.sizes()), name,
                    get_name(Input::kId), options.two_dimensional, by_chance, whole);
    rowwise.expect_same(expected.rowwise, what + ", rowwise");
    columnwise.expect_same(expected.columnwise, what + ", columnwise");
  };
  if (x.size(1) % 8 == 0) run.template operator()<true>();
  run.template operator()<false>();
}

template <typename Input>
void expect_nvfp4_of_the_cpu(const NamedMatrix& named, const ops::Nvfp4Options& options,
                             const ops::Orientations& orientations, Order order) {
  const float amax = amax_of_numbers_on_host_grid<Input>(named.x, order);
  expect_nvfp4<Input>(named.x, ops::quantize_nvfp4(named.x, options, orientations), {amax, amax},
                      options, order, named.name);
}

at::Tensor random_state() {
  return at::tensor(std::vector<std::int64_t>{0x123456789abcdef0, 7}, at::kLong);
}

TEST(Nvfp4Device, codes_and_both_levels_of_scales_match_cpu) {
  for_each_matrix([&]<typename Input>(const NamedMatrix& named) {
    for (const bool squares : {false, true}) {
      expect_nvfp4_of_the_cpu<Input>(named, {.two_dimensional = squares}, {true, true},
                                     Order::shuffled);
    }
  });
}

template <typename Input, bool whole>
void expect_by_lines(const NamedMatrix& named, const ops::Orientations& orientations, Order order) {
  const at::Tensor& x = named.x;
  const auto expected = ops::quantize_nvfp4(x, {.row_scaled = true}, orientations);
  const GuardedCodes rowwise(expected.rowwise);
  const GuardedCodes columnwise(expected.columnwise);
  const at::Tensor of_rows = ops::largest_numbers(x, 0);
  const at::Tensor of_columns = ops::largest_numbers(x, 1);
  const auto scales = [](const at::Tensor& amaxes, const GuardedCodes& codes) {
    const at::Tensor& scale = codes.tensor_scale.tensor();
    return cuda::Nvfp4TensorScale{amaxes.const_data_ptr<float>(),
                                  scale.defined() ? scale.mutable_data_ptr<float>() : nullptr,
                                  amaxes.numel()};
  };
  const cuda::Nvfp4Arguments arguments{
      .matrix = cuda::as_matrix(x),
      .outputs = {cuda::get_output<std::uint8_t>(rowwise.tensors()),
                  cuda::get_output<std::uint8_t>(columnwise.tensors())},
      .rowwise = scales(of_rows, rowwise),
      .columnwise = scales(of_columns, columnwise),
      .random_state = nullptr,
      .squares = false,
      .by_lines = true};
  using Shared = cuda::LinesShared<Input, kLength>;
  run_grid<Shared>(kBlocks, order, [&](const HostThread& thread, Shared& shared) {
    cuda::quantize_nvfp4<Input, whole, false, true>(arguments, thread, shared);
  });
  const auto what = fmt::format("{} {} of {} by lines, in packs {}", c10::str(x.sizes()),
                                named.name, get_name(Input::kId), whole);
  rowwise.expect_same(expected.rowwise, what + ", rowwise");
  columnwise.expect_same(expected.columnwise, what + ", columnwise");
}

TEST(Nvfp4Device, separately_scaled_rows_and_columns_match_cpu) {
  for_each_matrix([&]<typename Input>(const NamedMatrix& named) {
    for (const ops::Orientations& orientations : kOrientations) {
      if (named.x.size(1) % 8 == 0) {
        expect_by_lines<Input, true>(named, orientations, Order::shuffled);
      }
      expect_by_lines<Input, false>(named, orientations, Order::backward);
    }
  });
}

TEST(Nvfp4Device, elements_round_by_the_chance_that_the_cpu_gives_them) {
  for_each_matrix([&]<typename Input>(const NamedMatrix& named) {
    for (const bool squares : {false, true}) {
      expect_nvfp4_of_the_cpu<Input>(named,
                                     {.two_dimensional = squares, .random_state = random_state()},
                                     {true, true}, Order::shuffled);
    }
  });
}

TEST(Nvfp4Device, single_orientation_matches_cpu_in_any_thread_order) {
  for (const NamedMatrix& named : block_matrices<BF16>(70, 136, at::kBFloat16)) {
    for (const ops::Orientations& orientations : kOrientations) {
      for (const Order order : kOrders) {
        for (const bool squares : {false, true}) {
          expect_nvfp4_of_the_cpu<BF16>(named, {.two_dimensional = squares}, orientations, order);
        }
      }
    }
  }
}

TEST(Nvfp4Device, columnwise_copy_of_transformed_matrix_matches_cpu) {
  for_each_input_dtype([&]<typename Input>(at::ScalarType dtype) {
    for (const NamedMatrix& named : block_matrices<Input>(64, 136, dtype)) {
      for (const at::Tensor& state : {at::Tensor(), random_state()}) {
        const ops::Nvfp4Options options{.hadamard_signs = kSigns, .random_state = state};
        const auto expected = ops::quantize_nvfp4(named.x, options, {false, true});
        const at::Tensor rotated = hadamard_on_host_grid<Input, 2>(named.x, false, Order::forward);
        const float amax = amax_of_numbers_on_host_grid<Input>(rotated, Order::forward);
        expect_nvfp4<Input>(rotated, expected, {amax, amax}, options, Order::shuffled,
                            named.name + " transformed");
      }
    }
  });
}

TEST(Nvfp4Device, given_amaxes_take_the_place_of_the_tensors_own) {
  for (const NamedMatrix& named : block_matrices<BF16>(37, 72, at::kBFloat16)) {
    const ops::Nvfp4Options options{.random_state = random_state(),
                                    .amaxes = at::tensor(std::vector<float>{123.0F, 0.01F})};
    const auto expected = ops::quantize_nvfp4(named.x, options, {true, true});
    expect_nvfp4<BF16>(named.x, expected, {123.0F, 0.01F}, options, Order::shuffled, named.name);
  }
}

}  // namespace
}  // namespace telens::testing
