// The device code of amax, quantize, quantize_transpose, dequantize and the scales, run on the host
// thread by thread, against the CPU's kernels, bit for bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "core/formats/dispatch.h"
#include "core/kernels/cpu/quantize/fp8_ranges.h"
#include "core/kernels/cuda/quantize/amax.cuh"
#include "core/kernels/cuda/quantize/quantize.cuh"
#include "core/kernels/cuda/quantize/quantize_transpose.cuh"
#include "core/kernels/cuda/quantize/scaling.cuh"
#include "tests/core/cuda/host_data.h"
#include "tests/core/cuda/host_grid.h"
#include "tests/core/same_bits.h"

namespace telens::testing {
namespace {

using cuda::BlockMaximum;

constexpr std::int64_t kBlocks = 2;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const std::vector<float> kScales{1.0F, 448.0F / 3.0F, 0x1p-12F,  1e38F,        -2.5F,
                                 0.0F, -0.0F,         kInfinity, std::nanf("")};

// More than a tile of each kernel, and no multiple of a tile.
constexpr std::size_t kSize = 256 * 8 * 4 + 1237;

// Calls visit.operator()<Input>() for BF16, FP16 and FP32.
template <typename Visit>
void for_each_input(const Visit& visit) {
  visit.template operator()<BF16>();
  visit.template operator()<FP16>();
  visit.template operator()<FP32>();
}

template <typename Visit>
void for_each_output(const Visit& visit) {
  visit.template operator()<E4M3>();
  visit.template operator()<E5M2>();
}

float compute_amax(std::uint32_t magnitude, FormatId format) {
  return dispatch_high_precision_format(format, "test", [&]<typename Format>() {
    return decode<Format>(static_cast<typename Format::Bits>(magnitude));
  });
}

std::uint32_t get_bits(float value) { return bits_as<std::uint32_t>(value); }

template <typename Input>
struct QuantizeResult {
  Aligned<std::uint8_t> codes;
  float amax = 0;
};

template <typename Input, typename Output, int width>
QuantizeResult<Input> quantize_on_host_grid(const Aligned<typename Input::Bits>& x, float scale,
                                            std::size_t offset, Order order) {
  QuantizeResult<Input> result{Aligned<std::uint8_t>(x.size(), 0xcd)};
  const cuda::QuantizeArguments arguments{x.data() + offset,
                                          static_cast<std::int64_t>(x.size() - offset), &scale,
                                          &result.amax, result.codes.data() + offset};
  run_grid<BlockMaximum>(kBlocks, order, [&](const HostThread& thread, BlockMaximum& shared) {
    cuda::quantize<Input, Output, width>(arguments, thread, shared);
  });
  return result;
}

template <typename Input, typename Output>
void expect_codes_of_the_cpu(const Aligned<typename Input::Bits>& x, float scale, Order order) {
  std::vector<std::uint8_t> expected(x.size());
  const std::uint32_t largest =
      kernels::quantize_range(Input::kId, x.data(), x.size(), scale, Output::kId, expected.data());
  const auto compare = [&](const QuantizeResult<Input>& result, std::size_t offset,
                           const char* width) {
    EXPECT_TRUE(same_bits(
        std::span<const std::uint8_t>(result.codes).subspan(offset),
        [&](std::size_t i) { return expected[i + offset]; },
        [&](std::size_t i) { return fmt::format("0x{:x} times {}", x[i + offset], scale); }))
        << get_name(Input::kId) << " to " << get_name(Output::kId) << ", " << width;
  };
  const auto packed =
      quantize_on_host_grid<Input, Output, cuda::kPackOf<typename Input::Bits>>(x, scale, 0, order);
  compare(packed, 0, "in packs");
  EXPECT_EQ(get_bits(packed.amax), get_bits(compute_amax(largest, Input::kId)));
  compare(quantize_on_host_grid<Input, Output, 1>(x, scale, 1, order), 1, "one by one");
}

TEST(QuantizeDevice, codes_and_amax_match_cpu) {
  for_each_input([&]<typename Input>() {
    const auto special = codes_with_special_values<Input>(kSize);
    for_each_output([&]<typename Output>() {
      for (const float scale : kScales) {
        expect_codes_of_the_cpu<Input, Output>(special, scale, Order::forward);
      }
    });
    for (const Order order : kOrders) {
      expect_codes_of_the_cpu<Input, E4M3>(random_codes<Input>(kSize), 100.0F, order);
    }
  });
}

TEST(QuantizeDevice, every_16_bit_value_gets_the_code_of_the_cpu) {
  for (const float scale : {1.0F, 0x1p-12F}) {
    for_each_output([&]<typename Output>() {
      Aligned<std::uint16_t> every(65536);
      for (std::size_t i = 0; i < every.size(); ++i) every[i] = static_cast<std::uint16_t>(i);
      expect_codes_of_the_cpu<BF16, Output>(every, scale, Order::forward);
      expect_codes_of_the_cpu<FP16, Output>(every, scale, Order::forward);
    });
  }
}

TEST(QuantizeDevice, running_amax_keeps_the_larger_value) {
  const Aligned<std::uint16_t> x = random_codes<BF16>(1000);
  for (const float before : {0.0F, 1.0F, 1000.0F, kInfinity, std::nanf("")}) {
    float amax = before;
    const float scale = 1;
    Aligned<std::uint8_t> codes(x.size());
    const cuda::QuantizeArguments arguments{x.data(), 1000, &scale, &amax, codes.data()};
    run_grid<BlockMaximum>(1, Order::forward, [&](const HostThread& thread, BlockMaximum& shared) {
      cuda::quantize<BF16, E4M3, 8>(arguments, thread, shared);
    });
    const float largest =
        compute_amax(kernels::amax_range(FormatId::bf16, x.data(), x.size()), FormatId::bf16);
    if (std::isnan(before)) {
      EXPECT_TRUE(std::isnan(amax));
    } else {
      EXPECT_EQ(amax, std::max(before, largest));
    }
  }
}

TEST(AmaxDevice, is_the_amax_of_the_cpu) {
  const auto expect_amax = [&]<typename Input>(const Aligned<typename Input::Bits>& x,
                                               std::size_t offset, Order order) {
    float packed = 0;
    float single = 0;
    const auto size = static_cast<std::int64_t>(x.size());
    run_grid<BlockMaximum>(kBlocks, order, [&](const HostThread& thread, BlockMaximum& shared) {
      constexpr int kWidth = cuda::kPackOf<typename Input::Bits>;
      cuda::amax<Input, kWidth>({x.data(), size, &packed}, thread, shared);
    });
    run_grid<BlockMaximum>(kBlocks, order, [&](const HostThread& thread, BlockMaximum& shared) {
      cuda::amax<Input, 1>({x.data() + offset, size - static_cast<std::int64_t>(offset), &single},
                           thread, shared);
    });
    const auto reference = [&](std::size_t from) {
      return get_bits(compute_amax(
          kernels::amax_range(Input::kId, x.data() + from, x.size() - from), Input::kId));
    };
    EXPECT_EQ(get_bits(packed), reference(0)) << get_name(Input::kId);
    EXPECT_EQ(get_bits(single), reference(offset)) << get_name(Input::kId);
  };
  for_each_input([&]<typename Input>() {
    for (const Order order : kOrders) {
      expect_amax.template operator()<Input>(random_codes<Input>(kSize), 1, order);
    }
  });
}

TEST(AmaxDevice, one_special_value_gives_its_magnitude) {
  for_each_input([&]<typename Input>() {
    for (const auto& special : special_codes<Input>()) {
      float amax = 0;
      Aligned<typename Input::Bits> x{special.code};
      run_grid<BlockMaximum>(1, Order::forward, [&](const HostThread& thread, BlockMaximum& s) {
        cuda::amax<Input, 1>({x.data(), 1, &amax}, thread, s);
      });
      const typename Input::Bits magnitude = special.code & Input::kMagnitudeMask;
      EXPECT_EQ(get_bits(amax), get_bits(decode<Input>(magnitude))) << special.name;
    }
  });
}

template <typename Input, typename Output>
void expect_transpose(std::int64_t rows, std::int64_t columns, Order order) {
  const auto size = static_cast<std::size_t>(rows * columns);
  const auto x = codes_with_special_values<Input>(size);
  const float scale = -100.0F;
  float amax = 0;
  Aligned<std::uint8_t> codes(size, 0xcd);
  Aligned<std::uint8_t> transposed(size, 0xcd);
  const cuda::QuantizeTransposeArguments arguments{x.data(), rows,         columns,          &scale,
                                                   &amax,    codes.data(), transposed.data()};
  run_grid<cuda::TransposeShared>(
      2, order, [&](const HostThread& thread, cuda::TransposeShared& shared) {
        cuda::quantize_transpose<Input, Output>(arguments, thread, shared);
      });
  std::vector<std::uint8_t> expected(size);
  const std::uint32_t largest =
      kernels::quantize_range(Input::kId, x.data(), size, scale, Output::kId, expected.data());
  const auto describe = [&](std::size_t i) { return fmt::format("element {}", i); };
  EXPECT_TRUE(same_bits(
      std::span<const std::uint8_t>(codes), [&](std::size_t i) { return expected[i]; }, describe));
  const auto height = static_cast<std::size_t>(rows);
  const auto width = static_cast<std::size_t>(columns);
  EXPECT_TRUE(same_bits(
      std::span<const std::uint8_t>(transposed),
      [&](std::size_t i) { return expected[i % height * width + i / height]; }, describe))
      << rows << " x " << columns;
  EXPECT_EQ(get_bits(amax), get_bits(compute_amax(largest, Input::kId)));
}

TEST(QuantizeTransposeDevice, both_orientations_and_amax_match_cpu) {
  for (const Order order : kOrders) {
    expect_transpose<BF16, E4M3>(128, 256, order);
    expect_transpose<BF16, E5M2>(272, 144, order);
  }
  expect_transpose<FP16, E4M3>(16, 16, Order::shuffled);
  expect_transpose<FP32, E5M2>(144, 128, Order::shuffled);
}

template <typename Input, typename Output, int width>
void expect_values(std::size_t offset, const float* scale_inv) {
  using Bits = typename Output::Bits;
  Aligned<std::uint8_t> codes(256 * 200);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i);
  const std::size_t size = codes.size() - offset;
  Aligned<Bits> values(codes.size(), Bits{0xcd});
  run_grid<BlockMaximum>(2, Order::forward, [&](const HostThread& thread, BlockMaximum&) {
    cuda::dequantize<Input, Output, width>(
        {codes.data() + offset, static_cast<std::int64_t>(size), scale_inv, values.data() + offset},
        thread);
  });
  std::vector<Bits> expected(size);
  kernels::dequantize_range(Input::kId, codes.data() + offset, size, scale_inv ? *scale_inv : 1.0F,
                            Output::kId, expected.data());
  EXPECT_TRUE(same_bits(
      std::span<const Bits>(values).subspan(offset), [&](std::size_t i) { return expected[i]; },
      [&](std::size_t i) {
        return fmt::format("code 0x{:02x} times {}", codes[i + offset],
                           scale_inv ? *scale_inv : 1.0F);
      }))
      << get_name(Input::kId) << " to " << get_name(Output::kId);
}

TEST(DequantizeDevice, values_match_cpu) {
  for_each_output([&]<typename Input>() {
    for_each_input([&]<typename Output>() {
      for (const float& scale : kScales) {
        expect_values<Input, Output, cuda::kPackOf<typename Output::Bits>>(0, &scale);
        expect_values<Input, Output, 1>(1, &scale);
      }
      expect_values<Input, Output, cuda::kPackOf<typename Output::Bits>>(0, nullptr);
    });
  });
}

struct Nothing {};

// A view whose rows start `stride` elements apart.
void expect_window_ends(std::int64_t length, bool most_recent, std::int64_t stride) {
  constexpr std::int64_t kSlots = 3;
  std::vector<float> history(static_cast<std::size_t>(length * stride));
  std::mt19937 engine(5);
  for (float& amax : history) amax = std::uniform_real_distribution<float>(0, 9)(engine);
  const auto place = [&](std::int64_t row, std::int64_t slot) {
    return static_cast<std::size_t>(row * stride + slot);
  };
  if (length == 16) history[place(1, 1)] = std::nanf("");
  if (length == 2) history[place(1, 2)] = kInfinity;
  const std::vector<float> old_scale{2.0F, 3.0F, 4.0F};

  std::vector<float> fused_history = history;
  std::vector<float> fused_scale = old_scale;
  cuda::UpdateWindowsArguments arguments{{}, most_recent, 1, true};
  arguments.windows[0] = {
      {fused_history.data(), length, kSlots, stride}, fused_scale.data(), 448.0F};
  run_grid<Nothing>(1, Order::shuffled, [&](const HostThread& thread, Nothing&) {
    cuda::update_windows(arguments, thread);
  });

  for (std::int64_t slot = 0; slot < stride; ++slot) {
    const bool own = slot < kSlots;
    float amax = history[place(0, slot)];
    for (std::int64_t row = 1; row < (most_recent ? 1 : length); ++row) {
      const float value = history[place(row, slot)];
      if (std::isnan(value) || value > amax) amax = value;
    }
    const auto i = static_cast<std::size_t>(slot);
    if (own) {
      EXPECT_EQ(fused_scale[i], delayed_scale(amax, old_scale[i], 448.0F, 1, true));
    }
    for (std::int64_t row = 0; row < length; ++row) {
      const float moved = row == 0 ? 0.0F : history[place(row - 1, slot)];
      EXPECT_EQ(get_bits(fused_history[place(row, slot)]),
                get_bits(own ? moved : history[place(row, slot)]))
          << row << ", " << slot;
    }
  }
}

TEST(ScalingDevice, a_window_ends_as_its_three_operations_do_it) {
  for (const std::int64_t length : {1, 2, 16, 1024}) {
    for (const bool most_recent : {false, true}) {
      expect_window_ends(length, most_recent, 3);
      expect_window_ends(length, most_recent, 7);
    }
  }
}

}  // namespace
}  // namespace telens::testing
