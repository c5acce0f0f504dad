#include "core/modules/attention/attention_mask.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/distributed/warn_once.h"

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

}  // namespace telens
