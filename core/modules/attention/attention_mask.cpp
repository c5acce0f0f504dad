#include "core/modules/attention/attention_mask.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/atleast_2d.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/distributed/warn_once.h"
#include "core/ops/device.h"
#include "core/ops/torch_internals.h"

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
      warn_once(fmt::format("window_size ({}, {}) of a causal mask is taken as ({}, 0)", span.left,
                            span.right, span.left));
    }
    span.right = -1;  // implied by the type
  } else if (span.left == -1 && span.right == 0) {
    warn_once("window_size (-1, 0) is a causal mask's; with another it is taken as (-1, -1)");
    span.right = -1;
  } else if ((span.left < 0) != (span.right < 0)) {
    refuse();
  }
  return span;
}

AttentionMask make_mask(const at::Tensor& allowed) {
  const at::Tensor blind = allowed.any(-1, /*keepdim=*/true).logical_not();
  return {.allowed = allowed.logical_or(blind), .blind = blind};
}

// ---- the mask as a rule

namespace {

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

// Reshapes padding masks [batch, length] to [batch, 1, 1, length].
std::vector<at::Tensor> in_four_dimensions(std::vector<at::Tensor> masks) {
  for (at::Tensor& mask : masks) {
    if (mask.defined() && mask.dim() == 2) mask = mask.unsqueeze(1).unsqueeze(1);
  }
  return masks;
}

void check_padding_masks(const std::vector<at::Tensor>& masks, const AttentionSizes& sizes) {
  if (masks.size() == 1 && sizes.seq_q != sizes.seq_kv) {
    raise<ShapeError>(
        "attention_mask is one tensor, but query has {} positions and key {}; pass one mask for "
        "the query and one for the key",
        sizes.seq_q, sizes.seq_kv);
  }
  check_padding_mask("query", masks.front(), sizes.batch, sizes.seq_q);
  check_padding_mask("key", masks.back(), sizes.batch, sizes.seq_kv);
}

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

bool is_bottom_right(const AttentionMaskType& type, const AttentionSpan& span) {
  return type.causality == Causality::none ? span.bottom_right
                                           : type.causality == Causality::bottom_right;
}

// Larger than any position; twice this value is still an int32.
constexpr std::int64_t kFar = std::int64_t{1} << 30;

}  // namespace

void check_broadcast(std::string_view what, at::IntArrayRef given, const AttentionSizes& sizes) {
  const std::array expected{sizes.batch, sizes.heads, sizes.seq_q, sizes.seq_kv};
  const std::int64_t missing = std::ssize(expected) - std::ssize(given);
  bool fits = missing >= 0 && given.size() >= 2;
  for (std::size_t dim = 0; fits && dim < given.size(); ++dim) {
    fits = given[dim] == 1 || given[dim] == expected[dim + static_cast<std::size_t>(missing)];
  }
  if (!fits) {
    raise<ShapeError>(
        "{} is {}; expected one that broadcasts to [batch, heads, seq_q, seq_kv] = {}", what, given,
        expected);
  }
}

MaskRule::MaskRule(const AttentionMaskType& type, const AttentionSpan& span,
                   const std::vector<at::Tensor>& given, const AttentionSizes& sizes,
                   const at::Device& device, bool has_distances)
    : sizes_(sizes), device_(device), left_(span.left), right_(span.right) {
  const std::vector<at::Tensor> masks = type.padding ? in_four_dimensions(given) : given;
  check_masks(type, masks);
  const bool bottom_right = is_bottom_right(type, span);
  if (type.causality != Causality::none) right_ = 0;
  if (!type.padding && bottom_right) shift_ = sizes.seq_kv - sizes.seq_q;
  is_causal_ = !type.padding && shift_ == 0 && left_ < 0 && type.causality != Causality::none;
  if (type.arbitrary) {
    check_boolean(masks.front());
    hidden_ = at::atleast_2d(masks.front());
    check_broadcast("attention_mask", hidden_.sizes(), sizes);
    version_ = get_version(hidden_);
  }
  if (!type.padding) return;
  check_padding_masks(masks, sizes);
  // Diagonals count a sample's own positions without padding. In a batch, samples differ in how
  // much longer their keys are than their queries.
  const at::Tensor own_query = masks.front().logical_not().transpose(2, 3);
  const at::Tensor own_key = masks.back().logical_not();
  padded_query_ = own_query.logical_not();
  padded_key_ = own_key.logical_not();
  if (!has_limits() && !has_distances && !ops::is_on_host(own_key)) return;
  query_place_ = own_query.cumsum(2);
  key_place_ = own_key.cumsum(3).contiguous();
  if (bottom_right) {
    query_place_ =
        query_place_ + (own_key.sum(3, /*keepdim=*/true) - own_query.sum(2, /*keepdim=*/true));
  }
  query_place_ = query_place_.contiguous();
  if (!has_limits()) return;
  query_limit_ = query_place_.to(at::kInt).masked_fill_(padded_query_, -kFar);
  key_limit_ = key_place_.to(at::kInt).masked_fill_(padded_key_, kFar);
}

MaskRule::MaskRule(const AttentionMask& whole, const AttentionSizes& sizes)
    : sizes_(sizes), is_causal_(whole.is_causal), right_(whole.is_causal ? 0 : -1), given_(whole) {}

std::vector<std::int64_t> MaskRule::sizes() const {
  if (given_.allowed) return given_.allowed->sizes().vec();
  return hidden_.defined() ? hidden_.sizes().vec() : distance_sizes();
}

std::vector<std::int64_t> MaskRule::distance_sizes() const {
  if (is_padded()) return {sizes_.batch, 1, sizes_.seq_q, sizes_.seq_kv};
  return {sizes_.seq_q, sizes_.seq_kv};
}

AttentionMask MaskRule::whole() const {
  if (is_causal_ || !hides()) return {.is_causal = is_causal_};
  if (given_.allowed) return given_;
  return make_mask(hidden(whole_block({.batch = sizes_.batch,
                                       .heads = sizes_.heads,
                                       .groups = sizes_.heads,
                                       .queries = sizes_.seq_q,
                                       .keys = sizes_.seq_kv}))
                       .logical_not());
}

at::Tensor MaskRule::query_places(const ScoreBlock& block) const {
  if (is_padded()) return block.of_scores(query_place_);
  const auto integers = at::TensorOptions().dtype(at::kLong).device(device_);
  const std::int64_t first = block.query + shift_;
  return at::arange(first, first + block.queries, integers).unsqueeze(1);
}

at::Tensor MaskRule::key_places(const ScoreBlock& block) const {
  if (is_padded()) return block.of_scores(key_place_);
  const auto integers = at::TensorOptions().dtype(at::kLong).device(device_);
  return at::arange(block.key, block.key + block.keys, integers);
}

at::Tensor MaskRule::hidden(const ScoreBlock& block) const {
  at::Tensor hidden;
  const auto hide = [&](const at::Tensor& more) {
    hidden = hidden.defined() ? hidden.logical_or(more) : more;
  };
  if (given_.allowed) {
    hide(block.of_scores(*given_.allowed).logical_not());
    if (given_.blind) hide(block.of_scores(*given_.blind));
  }
  if (hidden_.defined()) hide(block.of_scores(hidden_));
  if (is_padded() && right_ < 0) {
    hide(block.of_scores(padded_query_));
    hide(block.of_scores(padded_key_));
  }
  if (has_limits()) {
    const at::Tensor queries = is_padded() ? block.of_scores(query_limit_) : query_places(block);
    const at::Tensor keys = is_padded() ? block.of_scores(key_limit_) : key_places(block);
    if (right_ >= 0) hide(keys > queries + std::min(right_, kFar / 2));
    if (left_ >= 0) hide(keys < queries - std::min(left_, kFar / 2));
  }
  return hidden;
}

at::Tensor MaskRule::distances(const ScoreBlock& block) const {
  return key_places(block) - query_places(block);
}

KeyRange MaskRule::padded_keys(std::int64_t sample, std::int64_t first, std::int64_t last) const {
  const std::int64_t* query = query_place_.const_data_ptr<std::int64_t>() + sample * sizes_.seq_q;
  const std::int64_t* key = key_place_.const_data_ptr<std::int64_t>() + sample * sizes_.seq_kv;
  const std::int64_t* end = key + sizes_.seq_kv;
  // Positions increase by one at a key of the sample and stay constant in padding.
  const std::int64_t* from = left_ < 0 ? key : std::lower_bound(key, end, query[first] - left_);
  const std::int64_t* to = std::lower_bound(key, end, end[-1]) + 1;  // after the last own key
  if (right_ >= 0) to = std::min(to, std::upper_bound(key, end, query[last] + right_));
  return {from - key, to - key};
}

KeyRange MaskRule::keys(const ScoreBlock& block) const {
  const std::int64_t last = block.query + block.queries - 1;
  const bool one_sample = block.samples == 1;
  if (is_padded()) {
    if (!one_sample || !ops::is_on_host(padded_key_)) return {0, sizes_.seq_kv};
    return padded_keys(block.sample, block.query, last);
  }
  return {left_ < 0 ? 0 : block.query + shift_ - left_,
          right_ < 0 ? sizes_.seq_kv : last + shift_ + right_ + 1};
}

void MaskRule::check_unchanged() const {
  if (hidden_.defined() && get_version(hidden_) != version_) {
    raise<UsageError>(
        "attention_mask was changed in place between the forward and its backward, which "
        "recomputes the scores; do not change it, or pass a copy to the forward");
  }
}

}  // namespace telens
