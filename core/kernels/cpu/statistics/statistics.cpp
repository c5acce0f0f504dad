// statistics, central moments and blockwise_dynamic_range on the CPU: strides, threads and the
// order of merging.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/kernels/cpu/grain.h"
#include "core/kernels/cpu/statistics/statistics_ranges.h"
#include "core/kernels/cpu/statistics/statistics_words.h"
#include "core/ops/device.h"
#include "core/ops/statistics.h"
#include "core/ops/statistics_layout.h"

namespace telens {
namespace {

using kernels::CastPlan;
using kernels::get_format;
using kernels::kStatisticsPart;
using kernels::merge_words;
using kernels::store_words;

struct Part {
  TensorSums tensor;
  std::vector<CastSums> casts;
};

Part read_tensor(const at::Tensor& x, const std::vector<CastPlan>& plans) {
  // A statistic does not depend on element order: any dense layout is read without a copy.
  const at::Tensor dense = x.is_non_overlapping_and_dense() ? x : x.contiguous();
  const FormatId format = get_format(x.scalar_type());
  const auto* data = static_cast<const std::byte*>(dense.const_data_ptr());
  const auto element = static_cast<std::int64_t>(dense.element_size());
  const std::int64_t numel = dense.numel();

  const std::int64_t count =
      std::max<std::int64_t>(1, (numel + kStatisticsPart - 1) / kStatisticsPart);
  std::vector<Part> parts(static_cast<std::size_t>(count),
                          Part{{}, std::vector<CastSums>(plans.size())});
  at::parallel_for(0, count, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      Part& part = parts[static_cast<std::size_t>(i)];
      const std::int64_t size = std::min(kStatisticsPart, numel - i * kStatisticsPart);
      kernels::add_statistics(format, data + i * kStatisticsPart * element,
                              static_cast<std::size_t>(size), plans, part.tensor, part.casts);
    }
  });

  Part& whole = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    merge(whole.tensor, parts[i].tensor);
    for (std::size_t cast = 0; cast < plans.size(); ++cast) {
      merge(whole.casts[cast], parts[i].casts[cast]);
    }
  }
  return std::move(whole);
}

Part read_tensor(const at::Tensor& x, at::TensorList scales, at::IntArrayRef formats) {
  ops::check_statistics(x, scales, formats);
  std::vector<CastPlan> plans;
  for (std::size_t i = 0; i < scales.size(); ++i) {
    plans.push_back(kernels::plan_cast(get_format(x.scalar_type()),
                                       static_cast<FormatId>(formats[i]),
                                       *scales[i].const_data_ptr<float>()));
  }
  return read_tensor(x, plans);
}

at::Tensor statistics_cpu(const at::Tensor& x, at::TensorList scales, at::IntArrayRef formats) {
  const Part part = read_tensor(x, scales, formats);
  at::Tensor result =
      at::empty({statistics_words(static_cast<std::int64_t>(scales.size()))}, at::kLong);
  auto* words = result.mutable_data_ptr<std::int64_t>();
  store_words(part.tensor, words);
  for (std::size_t i = 0; i < part.casts.size(); ++i) {
    store_words(part.casts[i], words + statistics_words(static_cast<std::int64_t>(i)));
  }
  return result;
}

void accumulate_statistics_cpu(const at::Tensor& x, at::TensorList scales, at::IntArrayRef formats,
                               at::Tensor& accumulator) {
  ops::check_accumulator("accumulate_statistics", x, accumulator,
                         statistics_words(static_cast<std::int64_t>(scales.size())));
  if (ops::gate_is_shut()) return;
  const Part part = read_tensor(x, scales, formats);
  auto* words = accumulator.mutable_data_ptr<std::int64_t>();
  merge_words(part.tensor, words);
  for (std::size_t i = 0; i < part.casts.size(); ++i) {
    merge_words(part.casts[i], words + statistics_words(static_cast<std::int64_t>(i)));
  }
}

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

// Elements that justify waking a thread.
constexpr std::int64_t kStripGrain = 1 << 16;

BlockRanges read_blocks(const at::Tensor& x, std::int64_t block_size, std::int64_t dims,
                        bool both_orientations) {
  ops::check_blockwise_dynamic_range(x, block_size, dims);
  BlockRanges whole;
  if (x.numel() == 0) return whole;
  const at::Tensor dense = x.contiguous();
  const std::int64_t columns = x.dim() == 0 ? 1 : x.size(-1);
  const std::int64_t rows = x.numel() / columns;
  const kernels::MatrixOfCodes matrix{kernels::get_format(x.scalar_type()), dense.const_data_ptr(),
                                      rows, columns};
  // The square blocks of the transposed matrix are the same. The block size is limited to the size
  // of the matrix, so that computations with a block size of 2^62 do not overflow.
  const kernels::BlockKinds kinds{std::min(block_size, std::max(rows, columns)), dims == 1,
                                  dims == 1 && both_orientations, dims == 2};

  const std::int64_t strips = (rows + kinds.size - 1) / kinds.size;
  const std::int64_t grain = std::max<std::int64_t>(1, kStripGrain / (kinds.size * columns));
  const std::int64_t count = (strips + grain - 1) / grain;
  std::vector<BlockRanges> parts(static_cast<std::size_t>(count));
  at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i * grain * kinds.size;
      const std::int64_t last = std::min(rows, first + grain * kinds.size);
      kernels::add_block_ranges(matrix, kinds, first, last, parts[static_cast<std::size_t>(i)]);
    }
  });
  for (const BlockRanges& part : parts) merge(whole, part);
  return whole;
}

at::Tensor blockwise_dynamic_range_cpu(const at::Tensor& x, std::int64_t block_size,
                                       std::int64_t dims, bool both_orientations) {
  const BlockRanges ranges = read_blocks(x, block_size, dims, both_orientations);
  at::Tensor result = at::empty({kBlockRangesWords}, at::kLong);
  kernels::store_words(ranges, result.mutable_data_ptr<std::int64_t>());
  return result;
}

void accumulate_blockwise_dynamic_range_cpu(const at::Tensor& x, std::int64_t block_size,
                                            std::int64_t dims, bool both_orientations,
                                            at::Tensor& accumulator) {
  ops::check_accumulator("accumulate_blockwise_dynamic_range", x, accumulator, kBlockRangesWords);
  if (ops::gate_is_shut()) return;
  kernels::merge_words(read_blocks(x, block_size, dims, both_orientations),
                       accumulator.mutable_data_ptr<std::int64_t>());
}

}  // namespace
}  // namespace telens

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("statistics", telens::statistics_cpu);
  library.impl("accumulate_statistics", telens::accumulate_statistics_cpu);
  library.impl("accumulate_central_moments", telens::accumulate_central_moments_cpu);
  library.impl("blockwise_dynamic_range", telens::blockwise_dynamic_range_cpu);
  library.impl("accumulate_blockwise_dynamic_range",
               telens::accumulate_blockwise_dynamic_range_cpu);
}
