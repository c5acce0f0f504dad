#include "core/modules/attention/packed_sequences.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/where.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/ops/device.h"
#include "core/ops/row_exchange.h"

namespace telens {
namespace {

// [batch, 1]
at::Tensor lengths(const at::Tensor& cu_seqlens) { return cu_seqlens.diff().unsqueeze(1); }

at::Tensor positions(std::int64_t count, const at::Tensor& like) {
  return at::arange(count, like.options().dtype(at::kLong));
}

// Checks that lengths are not negative and do not exceed the tokens.
void check_values(const char* argument, const at::Tensor& cu_seqlens,
                  const std::optional<at::Tensor>& starts, std::int64_t tokens) {
  const std::int64_t batch = cu_seqlens.size(0) - 1;
  if (batch == 0) return;
  const at::Tensor of_each = cu_seqlens.diff();
  const at::Tensor first = (starts ? *starts : cu_seqlens).narrow(0, 0, batch);
  const auto least = std::min(of_each.min().item<std::int64_t>(), first.min().item<std::int64_t>());
  const auto last = (first + of_each).max().item<std::int64_t>();
  if (least < 0 || last > tokens) {
    raise<ShapeError>(
        "{}: sequences must have lengths and places of 0 or more and end within the {} tokens; "
        "the smallest is {}, and the last ends at {}. Repeat the last sum for sequences without "
        "tokens, not -1 or 0",
        argument, tokens, least, last);
  }
}

}  // namespace

void check_cu_seqlens(const char* argument, const at::Tensor& cu_seqlens) {
  const bool integers =
      cu_seqlens.scalar_type() == at::kInt || cu_seqlens.scalar_type() == at::kLong;
  if (cu_seqlens.dim() != 1 || cu_seqlens.size(0) < 1 || !integers) {
    raise<ShapeError>(
        "{} is {} of shape {}; expected integers [batch + 1]: 0 and the sums of the "
        "sequences' lengths",
        argument, c10::toString(cu_seqlens.scalar_type()), c10::str(cu_seqlens.sizes()));
  }
}

PackedSequences packed_sequences(const char* argument, const at::Tensor& cu_seqlens,
                                 const std::optional<at::Tensor>& starts,
                                 std::optional<std::int64_t> longest, std::int64_t tokens) {
  check_cu_seqlens(argument, cu_seqlens);
  if (starts) {
    check_cu_seqlens(argument, *starts);
    if (starts->size(0) != cu_seqlens.size(0)) {
      raise<ShapeError>("{} has {} numbers and {}_padded {}; expected as many", argument,
                        cu_seqlens.size(0), argument, starts->size(0));
    }
  }
  if (!longest || ops::is_on_host(cu_seqlens)) check_values(argument, cu_seqlens, starts, tokens);
  const at::Tensor of_each = lengths(cu_seqlens);
  const std::int64_t batch = of_each.size(0);
  const std::int64_t most =
      longest ? *longest : (batch == 0 ? 0 : of_each.max().item<std::int64_t>());
  const at::Tensor position = positions(most, cu_seqlens);
  const at::Tensor padding = position >= of_each;  // [batch, most]
  const at::Tensor first = (starts ? *starts : cu_seqlens).narrow(0, 0, batch).unsqueeze(1);
  const at::Tensor places = at::where(padding, -1, first + position).to(at::kInt);
  return {.places = places.reshape({-1, 1}),
          .padding = padding.view({batch, 1, 1, most}),
          .batch = batch,
          .longest = most};
}

at::Tensor unpack_sequences(const at::Tensor& tokens, const PackedSequences& sequences) {
  return ops::combine_rows(tokens.flatten(1), sequences.places, std::nullopt)
      .view({sequences.batch, sequences.longest, tokens.size(1), tokens.size(2)});
}

at::Tensor pack_sequences(const at::Tensor& padded, const PackedSequences& sequences,
                          std::int64_t tokens) {
  return ops::spread_rows(padded.flatten(0, 1), sequences.places, std::nullopt, tokens);
}

at::Tensor padding_mask(const char* argument, const at::Tensor& cu_seqlens, std::int64_t length) {
  check_cu_seqlens(argument, cu_seqlens);
  const at::Tensor of_each = lengths(cu_seqlens);
  if (ops::is_on_host(cu_seqlens) && of_each.numel() != 0 &&
      of_each.min().item<std::int64_t>() < 0) {
    raise<ShapeError>(
        "{}: a sequence has {} tokens; expected sums that do not fall. Repeat the last sum for "
        "sequences without tokens, not -1",
        argument, of_each.min().item<std::int64_t>());
  }
  return (positions(length, cu_seqlens) >= of_each).unsqueeze(1).unsqueeze(1);
}

}  // namespace telens
