#include "core/modules/attention/rotary_embedding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/stack.h>
#include <fmt/ranges.h>

#include "core/ops/device.h"

namespace telens {

at::Tensor rotary_angles(std::int64_t max_seq_len, std::int64_t dim, double base) {
  if (dim < 2 || dim % 2 != 0) {
    raise<UsageError>(
        "rotary position embedding: dim is {}; expected an even number of at least 2, since "
        "channels are rotated in pairs",
        dim);
  }
  const auto floats = at::TensorOptions().dtype(at::kFloat);
  const at::Tensor frequencies =
      at::pow(base, at::arange(0, dim, 2, floats).div(-static_cast<double>(dim)));
  const at::Tensor angles = at::outer(at::arange(max_seq_len, floats), frequencies);
  return at::cat({angles, angles}, -1).unsqueeze(1).unsqueeze(1);
}

namespace {

// Maps every pair (x, y) to (-y, x).
at::Tensor quarter_turn(const at::Tensor& x, RotaryPairs pairs) {
  if (pairs == RotaryPairs::halves) {
    const auto halves = x.chunk(2, -1);
    return at::cat({-halves[1], halves[0]}, -1);
  }
  const at::Tensor neighbors = x.unflatten(-1, {-1, 2});
  return at::stack({-neighbors.select(-1, 1), neighbors.select(-1, 0)}, -1).flatten(-2);
}

}  // namespace

at::Tensor apply_rotary_embedding(const at::Tensor& t, const at::Tensor& angles,
                                  std::int64_t batch_dim, RotaryPairs pairs) {
  const std::int64_t sequence = t.size(1 - batch_dim);
  const std::int64_t batch = t.size(batch_dim);
  const auto fits = [&] {
    return angles.dim() == 4 && angles.size(0) >= sequence &&
           (angles.size(1) == 1 || angles.size(1) == batch) && angles.size(2) == 1 &&
           angles.size(3) <= t.size(-1) && angles.size(3) % 2 == 0;
  };
  if (!fits()) {
    raise<ShapeError>(
        "rotary_pos_emb is {}; expected [seq, 1 or {}, 1, channels] with at least {} positions and "
        "an even number of at most {} channels",
        angles.sizes(), batch, sequence, t.size(-1));
  }
  const std::int64_t rotated = angles.size(3);
  const at::ScalarType dtype = t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor phase = angles.narrow(0, 0, sequence).to(t.device(), dtype);
  if (batch_dim == 0) phase = phase.transpose(0, 1);

  const at::Tensor x = t.narrow(-1, 0, rotated).to(dtype);
  const at::Tensor result =
      (x * phase.cos() + quarter_turn(x, pairs) * phase.sin()).to(t.scalar_type());
  if (rotated == t.size(-1)) return result;
  return at::cat({result, t.narrow(-1, rotated, t.size(-1) - rotated)}, -1);
}

at::Tensor apply_rotary_embedding_packed(const at::Tensor& t, const at::Tensor& angles,
                                         const at::Tensor& cu_seqlens,
                                         const std::optional<at::Tensor>& starts,
                                         RotaryPairs pairs) {
  if (t.size(0) == 0) return t;
  if (angles.dim() != 4 || angles.size(0) == 0) {
    raise<ShapeError>("rotary_pos_emb is {}; expected [seq, 1, 1, channels]", angles.sizes());
  }
  if (ops::is_on_host(cu_seqlens) && cu_seqlens.size(0) > 1) {
    const auto longest = cu_seqlens.diff().max().item<std::int64_t>();
    if (longest > angles.size(0)) {
      raise<ShapeError>("rotary_pos_emb has {} positions; the longest packed sequence has {}",
                        angles.size(0), longest);
    }
  }
  const at::Tensor first = starts.value_or(cu_seqlens).to(t.device(), at::kLong);
  const at::Tensor token = at::arange(t.size(0), first.options());
  const at::Tensor sequence = at::searchsorted(first, token, /*out_int32=*/false, /*right=*/true);
  const at::Tensor place = token - first.index_select(0, (sequence - 1).clamp_min(0));
  const at::Tensor own = angles.to(t.device()).index_select(0, place.clamp(0, angles.size(0) - 1));
  return apply_rotary_embedding(t.unsqueeze(1), own, /*batch_dim=*/1, pairs).squeeze(1);
}

}  // namespace telens
