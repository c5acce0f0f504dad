// The kinds of collectives of tensors, and the rows that ranks exchange in them. No LibTorch.
#pragma once

#include <cstdint>
#include <vector>

namespace telens {

// exchange: an all-to-all of rows. pass: to the next rank of a ring, from the previous one.
enum class CollectiveKind : std::uint8_t { gather, sum, sum_and_scatter, maximum, exchange, pass };

// Rows are sent with unchanged bits.
constexpr bool sends_rows(CollectiveKind kind) {
  return kind == CollectiveKind::exchange || kind == CollectiveKind::pass;
}

// The number of rows sent to and received from each rank, including this one.
struct RowCounts {
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;

  RowCounts reversed() const { return {received, sent}; }
};

}  // namespace telens
