// `accumulate_central_moments` on the CPU: strides, threads and the order of merging.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/kernels/cpu/grain.h"
#include "core/kernels/cpu/statistics/central_moments_range.h"
#include "core/kernels/cpu/statistics/statistics_words.h"
#include "core/ops/capture.h"
#include "core/ops/statistics_checks.h"
#include "core/ops/statistics_layout.h"

namespace telens {
namespace {

using kernels::kStatisticsPart;

CentralMoments read_moments(const at::Tensor& x) {
  // Moments do not depend on element order: any dense layout is read without a copy.
  const at::Tensor dense = x.is_non_overlapping_and_dense() ? x : x.contiguous();
  const FormatId format = kernels::get_format(x.scalar_type());
  const auto* data = static_cast<const std::byte*>(dense.const_data_ptr());
  const auto element = static_cast<std::int64_t>(dense.element_size());
  const std::int64_t numel = dense.numel();

  const std::int64_t count = (numel + kStatisticsPart - 1) / kStatisticsPart;
  std::vector<CentralMoments> parts(static_cast<std::size_t>(count));
  at::parallel_for(0, count, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t size = std::min(kStatisticsPart, numel - i * kStatisticsPart);
      kernels::add_central_moments(format, data + i * kStatisticsPart * element,
                                   static_cast<std::size_t>(size),
                                   parts[static_cast<std::size_t>(i)]);
    }
  });
  CentralMoments whole;
  for (const CentralMoments& part : parts) merge(whole, part);
  return whole;
}

void accumulate_central_moments_cpu(const at::Tensor& x, at::Tensor& accumulator) {
  ops::check_central_moments(x, accumulator);
  if (ops::gate_is_shut()) return;
  kernels::merge_words(read_moments(x),
                       accumulator.mutable_data_ptr<std::int64_t>() + kOnePassWords);
}

}  // namespace
}  // namespace telens

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("accumulate_central_moments", telens::accumulate_central_moments_cpu);
}
