// Sums, samples and digests of a collective's input or output tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "core/base/collective_kind.h"
#include "core/base/error.h"
#include "core/ops/collective_sums_layout.h"

namespace telens::ops {

// x: any floating dtype. Returns FP64 [kSumsNumbers] on x's device: CollectiveSums. Converts a part
// at a time to FP64, never all of x. `first`, `whole`: x holds the elements from `first` on of a
// tensor of that size. Samples refer to the whole tensor; samples outside x are NaN.
TELENS_EXPORT at::Tensor collective_sums(const at::Tensor& x, CollectiveKind kind,
                                         std::int64_t first, std::int64_t whole);

struct ExchangedRows {
  const at::Tensor& rows;                // [sum of counts, ...]
  std::span<const std::int64_t> counts;  // to each rank of the group, or from it
  std::int64_t rank;                     // this rank's
  bool received = false;
};

// Returns int64 [kExchangeWords] on the rows' device: for each word, a sum of the digests of its
// ranks' rows, each multiplied by a factor of the pair, so that two pairs that are mistaken for
// each other do not cancel out.
TELENS_EXPORT at::Tensor exchange_words(const ExchangedRows& exchanged);

}  // namespace telens::ops
