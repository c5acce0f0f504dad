#include "core/modules/attention/context_mask.h"

#include <ATen/TensorOperators.h>

namespace telens {

at::Tensor allowed_keys(const at::Tensor& query, const at::Tensor& key, const SeenSpan& span) {
  const at::Tensor queries = query.unsqueeze(1).unsqueeze(3);
  const at::Tensor keys = key.unsqueeze(1).unsqueeze(2);
  at::Tensor allowed = (queries >= 0).logical_and(keys >= 0);
  const at::Tensor distance = keys - queries;
  if (span.causal) allowed = allowed.logical_and(distance <= 0);
  if (span.left >= 0) allowed = allowed.logical_and(distance >= -span.left);
  if (span.right >= 0) allowed = allowed.logical_and(distance <= span.right);
  return allowed;
}

}  // namespace telens
