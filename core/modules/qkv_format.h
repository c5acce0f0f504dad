// The order of dimensions of query, key and value.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/error.h"

namespace telens {

// Where the batch dimension stands: 1 for sbhd ([seq, batch, ...]), 0 for bshd. Throws UsageError
// for anything else.
inline std::int64_t batch_dim_of(std::string_view qkv_format) {
  if (qkv_format == "sbhd") return 1;
  if (qkv_format == "bshd") return 0;
  if (qkv_format == "thd") {
    raise<UsageError>(
        "qkv_format thd (packed sequences) is not supported; use sbhd or bshd with a padding mask");
  }
  raise<UsageError>("qkv_format '{}' is unknown; expected sbhd or bshd", qkv_format);
}

}  // namespace telens
