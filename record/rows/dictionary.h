// Names that rows refer to by number: one dictionary for each kind of name.
#pragma once

#include <cstddef>
#include <cstdint>

namespace telens::record {

enum class Dictionary : std::uint8_t { layer, tensor, gemm, statistic, scope, word };
inline constexpr std::size_t kDictionaries = 6;

// An id that names nothing: a record without a GEMM, a value of this rank alone.
inline constexpr std::int32_t kNoName = -1;

}  // namespace telens::record
