// The order of dimensions of query, key and value.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/error.h"

namespace telens {

// Throws UsageError unless the format is sbhd ([seq, batch, ...]), bshd or thd ([tokens, ...]).
inline void check_qkv_format(std::string_view qkv_format) {
  if (qkv_format != "sbhd" && qkv_format != "bshd" && qkv_format != "thd") {
    raise<UsageError>("qkv_format '{}' is unknown; expected sbhd, bshd or thd", qkv_format);
  }
}

// The batch dimension: 1 for sbhd, 0 for bshd.
inline std::int64_t get_batch_dim(std::string_view qkv_format) {
  check_qkv_format(qkv_format);
  return qkv_format == "sbhd" ? 1 : 0;
}

}  // namespace telens
