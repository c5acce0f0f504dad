// The device code of what-if statistics of block formats, run on the host thread by thread, against
// the CPU's operator. Counters and extremes must be equal; sums may differ by the bound that holds
// between any two devices.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/kernels/cuda/blocks/block_tensors.h"
#include "core/kernels/cuda/statistics/statistics_what_if.cuh"
#include "core/ops/statistics.h"
#include "tests/core/cuda/block_data.h"
#include "tests/core/cuda/host_grid.h"
#include "tests/core/statistics_checks.h"
#include "tests/core/what_if_casts.h"

namespace telens::testing {
namespace {

using cuda::WhatIfShared;
using ops::WhatIfCast;

// The largest finite magnitude.
float largest_number(const at::Tensor& x) {
  const at::Tensor values = x.to(at::kFloat).abs();
  return x.numel() == 0 ? 0.0F : values.masked_fill(values.isnan(), 0).max().item<float>();
}

template <typename Input>
std::vector<CastSums> on_host_grid(const at::Tensor& contiguous, std::span<const WhatIfCast> casts,
                                   bool whole, Order order) {
  const float amax = largest_number(contiguous);
  const std::int64_t blocks = cuda::what_if_grid(contiguous.size(0), contiguous.size(1));
  std::vector<CastSums> parts(casts.size() * static_cast<std::size_t>(blocks));
  cuda::WhatIfArguments arguments{};
  arguments.x = cuda::as_matrix(contiguous);
  arguments.amax = &amax;
  arguments.cast_count = static_cast<int>(casts.size());
  arguments.parts = parts.data();
  for (std::size_t i = 0; i < casts.size(); ++i) {
    const bool squares = casts[i].squares || casts[i].mode == ScalingMode::block_2d;
    arguments.casts[i] = {casts[i].format, scheme(casts[i].mode).scale_format,
                          static_cast<int>(block_length(casts[i].mode)), squares,
                          casts[i].columnwise};
  }
  run_grid<WhatIfShared>(blocks, order, [&](const HostThread& thread, WhatIfShared& shared) {
    if (whole) {
      cuda::what_if_statistics<Input, true>(arguments, thread, shared);
    } else {
      cuda::what_if_statistics<Input, false>(arguments, thread, shared);
    }
  });
  std::vector<CastSums> sums(casts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    merge(sums[i / static_cast<std::size_t>(blocks)], parts[i]);
  }
  return sums;
}

// Computes all casts, in launches of the largest number of casts that one launch takes.
template <typename Input>
void expect_those_of_the_cpu(const at::Tensor& x, Order order) {
  const std::vector<WhatIfCast> all = all_what_if_casts();
  std::vector<at::Tensor> words;
  for (std::size_t i = 0; i < all.size(); ++i) words.push_back(ops::empty_block_casts(at::kCPU));
  ops::accumulate_what_if_statistics(x, all, words);
  for (const bool whole : {true, false}) {
    if (whole && x.size(1) % 8 != 0) continue;
    for (std::size_t first = 0; first < all.size(); first += cuda::kWhatIfCastsOfLaunch) {
      const std::size_t count =
          std::min<std::size_t>(cuda::kWhatIfCastsOfLaunch, all.size() - first);
      const std::span<const WhatIfCast> casts(all.data() + first, count);
      const auto got = on_host_grid<Input>(x, casts, whole, order);
      for (std::size_t i = 0; i < count; ++i) {
        SCOPED_TRACE(fmt::format("{} {} of {}, squares {}, columnwise {}, in packs {}",
                                 c10::str(x.sizes()), get_name(casts[i].mode),
                                 get_name(casts[i].format), casts[i].squares, casts[i].columnwise,
                                 whole));
        expect_cast(got[i], typed(words[first + i]), kSumsBound);
      }
    }
  }
}

TEST(WhatIfDevice, statistics_of_every_cast_match_cpu) {
  for_each_input_dtype([&]<typename Input>(at::ScalarType dtype) {
    for (const auto& [rows, columns] : shapes_with_elements(Input::kId)) {
      for (const NamedMatrix& named : block_matrices<Input>(rows, columns, dtype)) {
        SCOPED_TRACE(fmt::format("{} of {}", named.name, get_name(Input::kId)));
        expect_those_of_the_cpu<Input>(named.x, Order::shuffled);
      }
    }
  });
}

TEST(WhatIfDevice, several_tiles_match_cpu_in_any_thread_order) {
  at::manual_seed(4);
  for (const Order order : kOrders) {
    expect_those_of_the_cpu<BF16>(wide_data({300, 520}, at::kBFloat16), order);
  }
}

TEST(WhatIfDevice, values_at_the_ends_of_the_range_match_cpu) {
  at::manual_seed(5);
  const at::Tensor x = at::randn({130, 264});
  for (const float factor : {0x1p120F, 0x1p-126F, 0x1p-145F}) {
    expect_those_of_the_cpu<FP32>(x * factor, Order::forward);
  }
}

}  // namespace
}  // namespace telens::testing
