#include "core/modules/attention/attention_mask.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
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

// Diagonals go by a sample's own positions, padding not counted, wherever it lies: in a batch
// samples differ in how much longer their keys are than their queries.
at::Tensor padded_distances(bool bottom_right, const Padding& padding) {
  const at::Tensor own_query = padding.query.logical_not().transpose(2, 3);
  const at::Tensor own_key = padding.key.logical_not();
  at::Tensor diagonal = own_query.cumsum(2);
  if (bottom_right) {
    diagonal = diagonal + (own_key.sum(3, /*keepdim=*/true) - own_query.sum(2, /*keepdim=*/true));
  }
  return own_key.cumsum(3) - diagonal;
}

at::Tensor plain_distances(bool bottom_right, const AttentionSizes& sizes,
                           const at::Device& device) {
  const auto integers = at::TensorOptions().dtype(at::kLong).device(device);
  const std::int64_t shift = bottom_right ? sizes.seq_kv - sizes.seq_q : 0;
  return at::arange(sizes.seq_kv, integers) - at::arange(sizes.seq_q, integers).unsqueeze(1) -
         shift;
}

bool is_bottom_right(const AttentionMaskType& type, const AttentionSpan& span) {
  return type.causality == Causality::none ? span.bottom_right
                                           : type.causality == Causality::bottom_right;
}

// Neither a padded query nor a padded key takes part: [batch, 1, seq_q, seq_kv].
at::Tensor own_positions(const Padding& padding) {
  return padding.query.logical_not().transpose(2, 3).logical_and(padding.key.logical_not());
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

AttentionSpan attention_span(const AttentionMaskType& type, const std::optional<WindowSize>& window,
                             std::optional<bool> bottom_right) {
  AttentionSpan span{.bottom_right = bottom_right.value_or(true)};
  if (!window) return span;
  const bool causal = type.causality != Causality::none;
  const auto refuse = [&] {
    raise<UsageError>(
        "window_size is ({}); expected two numbers, left and right, {}", fmt::join(*window, ", "),
        causal ? "(-1, 0) or (left, 0) for a causal mask" : "(-1, -1) or both 0 or more");
  };
  if (window->size() != 2 || window->front() < -1 || window->back() < -1) refuse();
  span.left = window->front();
  span.right = window->back();
  if (causal) {
    if (span.right > 0) {
      TORCH_WARN_ONCE("window_size (", span.left, ", ", span.right,
                      ") of a causal mask is taken as (", span.left, ", 0)");
    }
    span.right = -1;  // the type sees to it
  } else if (span.left == -1 && span.right == 0) {
    TORCH_WARN_ONCE("window_size (-1, 0) is a causal mask's; with another it is taken as (-1, -1)");
    span.right = -1;
  } else if ((span.left < 0) != (span.right < 0)) {
    refuse();
  }
  return span;
}

namespace {

void check_masks(const AttentionMaskType& type, const std::vector<at::Tensor>& masks) {
  const bool needs_tensor = type.padding || type.arbitrary;
  if (needs_tensor && (masks.empty() || masks.size() > 2)) {
    raise<UsageError>(
        "attn_mask_type {} needs attention_mask{}: one tensor, or for padding two; got {}",
        type.padding ? "padding" : "arbitrary", type.padding ? " or cu_seqlens_q" : "",
        masks.size());
  }
  if (type.arbitrary && masks.size() == 2) {
    raise<UsageError>("attn_mask_type arbitrary takes one attention_mask; got 2");
  }
}

}  // namespace

at::Tensor diagonal_distances(const AttentionMaskType& type, const AttentionSpan& span,
                              const std::vector<at::Tensor>& masks, const AttentionSizes& sizes,
                              const at::Device& device) {
  check_masks(type, masks);
  const bool bottom_right = is_bottom_right(type, span);
  return type.padding ? padded_distances(bottom_right, padding_of(masks, sizes))
                      : plain_distances(bottom_right, sizes, device);
}

AttentionMask make_attention_mask(const AttentionMaskType& type, const AttentionSpan& span,
                                  const std::vector<at::Tensor>& masks, const AttentionSizes& sizes,
                                  const at::Device& device) {
  check_masks(type, masks);
  const bool causal = type.causality != Causality::none;
  at::Tensor allowed;
  if (type.arbitrary) {
    check_boolean(masks.front());
    allowed = masks.front().logical_not();
  } else if (type.padding) {
    allowed = own_positions(padding_of(masks, sizes));
  } else if (!span.has_window() &&
             (type.causality != Causality::bottom_right || sizes.seq_q == sizes.seq_kv)) {
    return {.is_causal = causal};
  }
  if (causal || span.has_window()) {
    const at::Tensor distances = diagonal_distances(type, span, masks, sizes, device);
    const auto limit = [&](const at::Tensor& within) {
      allowed = allowed.defined() ? allowed.logical_and(within) : within;
    };
    if (causal) limit(distances <= 0);
    if (span.left >= 0) limit(distances >= -span.left);
    if (span.right >= 0) limit(distances <= span.right);
  }
  return mask_of(allowed);
}

}  // namespace telens
