#include "core/modules/attention_mask.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"

namespace telens {
namespace {

struct NamedMaskType {
  std::string_view name;
  AttentionMaskType type;
};

constexpr AttentionMaskType padded(Causality causality) {
  return {.causality = causality, .padding = true, .arbitrary = false};
}

constexpr AttentionMaskType unpadded(Causality causality) {
  return {.causality = causality, .padding = false, .arbitrary = false};
}

constexpr std::array kMaskTypes{
    NamedMaskType{"no_mask", unpadded(Causality::none)},
    NamedMaskType{"padding", padded(Causality::none)},
    NamedMaskType{"causal", unpadded(Causality::top_left)},
    NamedMaskType{"padding_causal", padded(Causality::top_left)},
    NamedMaskType{"causal_bottom_right", unpadded(Causality::bottom_right)},
    NamedMaskType{"padding_causal_bottom_right", padded(Causality::bottom_right)},
    NamedMaskType{"arbitrary", {.causality = Causality::none, .padding = false, .arbitrary = true}},
    NamedMaskType{"causal,padding", padded(Causality::top_left)},
    NamedMaskType{"padding,causal", padded(Causality::top_left)},
};

void check_boolean(const at::Tensor& mask) {
  if (mask.scalar_type() != at::kBool) {
    raise<ShapeError>("attention_mask has dtype {}; expected Bool, where True is masked out",
                      c10::toString(mask.scalar_type()));
  }
}

void check_padding_mask(const char* of, const at::Tensor& mask, std::int64_t batch,
                        std::int64_t length) {
  check_boolean(mask);
  const std::array expected{batch, std::int64_t{1}, std::int64_t{1}, length};
  if (mask.sizes() != at::IntArrayRef(expected)) {
    raise<ShapeError>("attention_mask of the {} is {}; expected {}", of, mask.sizes(), expected);
  }
}

// Where the positions of queries and keys are padding: [batch, 1, 1, seq].
struct Padding {
  at::Tensor query;
  at::Tensor key;
};

Padding padding_of(const std::vector<at::Tensor>& masks, const AttentionSizes& sizes) {
  const bool self = masks.size() == 1;
  if (self && sizes.seq_q != sizes.seq_kv) {
    raise<ShapeError>(
        "attention_mask is one tensor, but query has {} positions and key {}; pass a mask of each",
        sizes.seq_q, sizes.seq_kv);
  }
  const at::Tensor& query = masks.front();
  const at::Tensor& key = masks.back();
  check_padding_mask("query", query, sizes.batch, sizes.seq_q);
  check_padding_mask("key", key, sizes.batch, sizes.seq_kv);
  return {query, key};
}

// [batch, 1, seq_q, seq_kv]: neither a padded query nor a padded key takes part. Diagonals go by a
// sample's own positions, padding not counted, wherever it lies: in a batch samples differ in how
// much longer their keys are than their queries.
at::Tensor padded_allowed(Causality causality, const Padding& padding) {
  const at::Tensor own_query = padding.query.logical_not().transpose(2, 3);
  const at::Tensor own_key = padding.key.logical_not();
  const at::Tensor allowed = own_query.logical_and(own_key);
  if (causality == Causality::none) return allowed;
  at::Tensor last_key = own_query.cumsum(2);  // that a query sees, counted from 1
  if (causality == Causality::bottom_right) {
    last_key = last_key + (own_key.sum(3, /*keepdim=*/true) - own_query.sum(2, /*keepdim=*/true));
  }
  return allowed.logical_and(own_key.cumsum(3) <= last_key);
}

at::Tensor causal_allowed(Causality causality, const AttentionSizes& sizes,
                          const at::Device& device) {
  const std::int64_t shift = causality == Causality::bottom_right ? sizes.seq_kv - sizes.seq_q : 0;
  return at::ones({sizes.seq_q, sizes.seq_kv}, at::TensorOptions().dtype(at::kBool).device(device))
      .tril(shift);
}

AttentionMask mask_of(const at::Tensor& allowed) {
  const at::Tensor blind = allowed.any(-1, /*keepdim=*/true).logical_not();
  return {.allowed = allowed.logical_or(blind), .blind = blind};
}

}  // namespace

AttentionMaskType mask_type_from_name(std::string_view name) {
  const auto found = std::find_if(kMaskTypes.begin(), kMaskTypes.end(),
                                  [&](const NamedMaskType& row) { return row.name == name; });
  if (found == kMaskTypes.end()) {
    std::vector<std::string_view> names;
    for (const NamedMaskType& row : kMaskTypes) names.push_back(row.name);
    raise<UsageError>("attn_mask_type '{}' is unknown; expected one of {}", name,
                      fmt::join(names, "; "));
  }
  return found->type;
}

AttentionMask make_attention_mask(const AttentionMaskType& type,
                                  const std::vector<at::Tensor>& masks, const AttentionSizes& sizes,
                                  const at::Device& device) {
  const bool needs_tensor = type.padding || type.arbitrary;
  if (needs_tensor && (masks.empty() || masks.size() > 2)) {
    raise<UsageError>(
        "attn_mask_type {} needs attention_mask: one tensor, or for padding two; got {}",
        type.padding ? "padding" : "arbitrary", masks.size());
  }
  if (type.arbitrary) {
    check_boolean(masks.front());
    return mask_of(masks.front().logical_not());
  }
  if (type.padding) {
    return mask_of(padded_allowed(type.causality, padding_of(masks, sizes)));
  }
  if (type.causality == Causality::bottom_right && sizes.seq_q != sizes.seq_kv) {
    return mask_of(causal_allowed(type.causality, sizes, device));
  }
  return {.is_causal = type.causality != Causality::none};
}

}  // namespace telens
