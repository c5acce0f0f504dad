// Queries of all heads, some at a time: the score blocks in a step of the ring.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "core/modules/attention/score_block.h"

namespace telens {

// Rows of queries whose scores are computed together.
struct QueryRows {
  std::int64_t first;
  std::int64_t count;

  at::Tensor of(const at::Tensor& rows) const { return rows.narrow(-2, first, count); }
};

// Calls `use` with all rows, some at a time.
template <typename Call>
void for_query_rows(std::int64_t queries, const Call& call) {
  constexpr std::int64_t kRowsAtOnce = 256;
  for (std::int64_t first = 0; first < queries; first += kRowsAtOnce) {
    call(QueryRows{first, std::min(kRowsAtOnce, queries - first)});
  }
}

}  // namespace telens
