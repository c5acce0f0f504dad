#include "core/ops/keyed_dropout.h"

#include <torch/library.h>

#include "core/ops/dispatcher.h"
#include "core/ops/keyed_dropout_checks.h"

namespace telens::ops {
namespace {

using Signature = at::Tensor&(at::Tensor&, std::int64_t, double, at::IntArrayRef);

at::Tensor& keyed_dropout_meta(at::Tensor& weights, std::int64_t, double probability,
                               at::IntArrayRef place) {
  check_keyed_dropout(weights, probability, place);
  return weights;
}

}  // namespace

void check_keyed_dropout(const at::Tensor& weights, double probability, at::IntArrayRef place) {
  const bool has_type = weights.scalar_type() == at::kFloat || weights.scalar_type() == at::kDouble;
  if (!has_type || weights.dim() != 4 || !weights.is_contiguous()) {
    raise<ShapeError>(
        "keyed_dropout_: weights are {} of shape {}; expected Float or Double, contiguous "
        "[samples, heads, queries, keys]",
        c10::toString(weights.scalar_type()), c10::str(weights.sizes()));
  }
  if (!(probability >= 0 && probability <= 1) || place.size() != 4) {
    raise<UsageError>(
        "keyed_dropout_: probability is {} and the place has {} numbers; expected 0 to 1, and 4 of "
        "the first weight",
        probability, place.size());
  }
}

void keyed_dropout_(const at::Tensor& weights, const KeyedDropout& dropout) {
  static const auto op = find_operator<Signature>("telens::keyed_dropout_");
  at::Tensor in_place = weights;
  op.call(in_place, dropout.seed, dropout.probability,
          {dropout.sample, dropout.head, dropout.query, dropout.key});
}

}  // namespace telens::ops

TORCH_LIBRARY_IMPL(telens, Meta, library) {
  library.impl("keyed_dropout_", TORCH_FN(telens::ops::keyed_dropout_meta));
}
