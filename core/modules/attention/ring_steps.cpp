#include "core/modules/attention/ring_steps.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "core/modules/attention/context_mask.h"

namespace telens {

at::Tensor Travelers::pack(const at::Tensor& key, const at::Tensor& value) {
  return at::cat({key.flatten(), value.flatten()});
}

at::Tensor Travelers::key(const at::Tensor& packed) const {
  return packed.narrow(0, 0, key_numel()).view(key_sizes_);
}

at::Tensor Travelers::value(const at::Tensor& packed) const {
  return packed.narrow(0, key_numel(), packed.numel() - key_numel()).view(value_sizes_);
}

std::optional<at::Tensor> RingStep::of_bias(const std::optional<at::Tensor>& bias) const {
  if (!bias) return std::nullopt;
  const at::Tensor columns = of_all_keys.of(*bias, 3);
  return columns.size(2) == 1 ? columns : query.of(columns);
}

Ring::Ring(const RingAttention& how, std::int64_t queries, std::int64_t keys)
    : how_(how),
      queries_(queries),
      keys_(keys),
      at_{.rank = rank_in(*how.group), .size = size_of(*how.group)} {}

std::optional<at::Tensor> Ring::rank_by_rank(const std::optional<at::Tensor>& bias,
                                             at::ScalarType dtype) const {
  if (!bias) return std::nullopt;
  return to_rank_order(bias->to(dtype), 3, at_.size);
}

at::Tensor Ring::in_natural_order(const at::Tensor& bias) const {
  return to_natural_order(bias, 3, at_.size);
}

// Under a causal mask a lower rank's second key chunk is masked for all queries, and only the
// second query chunk sees a higher rank's keys. All other blocks are unmasked.
RingStep Ring::step(std::int64_t index) const {
  const std::int64_t owner = (at_.rank - index + at_.size) % at_.size;
  RingStep step{.query = {0, queries_},
                .key = {0, keys_},
                .of_all_keys = {owner * keys_, keys_},
                .allowed = {}};
  if (how_.causal && owner < at_.rank) step.key.count = keys_ / 2;
  if (how_.causal && owner > at_.rank) step.query = {queries_ / 2, queries_ / 2};
  step.of_all_keys.count = step.key.count;
  const bool diagonal = how_.causal && owner == at_.rank;
  if (diagonal || how_.query.has_gaps || how_.key.has_gaps) {
    step.allowed =
        allowed_keys(step.query.of(how_.query.of(at_), 1),
                     step.key.of(how_.key.of({owner, at_.size}), 1), {.causal = diagonal});
  }
  return step;
}

std::optional<at::Tensor> Ring::draw_kept(const at::Tensor& query, const at::Tensor& key) const {
  if (how_.dropout == 0) return std::nullopt;
  return at::empty({query.size(0), query.size(1), query.size(2), key.size(2)},
                   query.options().dtype(at::kBool))
      .bernoulli_(1 - how_.dropout);
}

}  // namespace telens
