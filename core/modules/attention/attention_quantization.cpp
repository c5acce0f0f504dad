#include "core/modules/attention/attention_quantization.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <array>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/modules/attention/attention_recipe.h"
#include "core/modules/shared/recomputation.h"
#include "core/quantization/extra_state.h"

namespace telens {
namespace {

// Indices in groups_, in the order of the slots.
constexpr std::size_t kQueryKeyValue = 0;
constexpr std::size_t kOutput = 1;
constexpr std::size_t kSoftmax = 2;
constexpr std::array<std::string_view, 3> kGroupNames = {"query, key and value", "output",
                                                         "softmax"};

}  // namespace

void AttentionQuantization::make_groups() {
  if (groups_[0]) return;
  const auto windows = std::make_shared<ModuleWindows>();
  for (auto& group : groups_) group = std::make_shared<LayerQuantization>(windows);
}

// Transformer Engine's slots: GEMM1_OUTPUT, GEMM2_INPUT and GEMM3_OUTPUT forward; GRAD_OUTPUT1,
// GRAD_INPUT2 and GRAD_INPUT3 backward.
Fp8Attention AttentionQuantization::of(const Contexts& contexts, const std::string& name) const {
  const auto quantizer = [&](std::size_t group, TensorRole role) {
    return contexts[group].quantizers[role];
  };
  AttentionQuantizers all{.qkv = quantizer(kQueryKeyValue, TensorRole::output),
                          .s = quantizer(kSoftmax, TensorRole::output),
                          .o = quantizer(kOutput, TensorRole::input),
                          .d_o = quantizer(kOutput, TensorRole::grad_input),
                          .d_p = quantizer(kSoftmax, TensorRole::grad_input),
                          .d_qkv = quantizer(kQueryKeyValue, TensorRole::grad_output)};
  const bool current =
      !casts_in_blocks(*all.qkv) && contexts[0].recipe->as_delayed_scaling() == nullptr;
  if (casts_in_blocks(*all.qkv)) all.s = all.o = all.d_p = all.d_qkv = nullptr;
  return {.quantizers = std::move(all),
          .scales = scales_,
          .region = contexts[0].region,
          .first_in_region = contexts[0].first_in_region,
          .shares_scales = contexts[0].recipe->fp8_mha,
          .sums_output_codes = !has_output_in_high_precision() && current,
          .name = name};
}

Fp8Attention AttentionQuantization::begin(const ForwardContext& context,
                                          const AutocastOptions& options, const at::Device& device,
                                          bool asks_gradient, const std::string& name) {
  make_groups();
  const bool trains = recomputation::trains();  // evaluation records no amax
  Contexts contexts;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    ForwardContext& own = contexts[group];
    own.recipe = context.recipe;
    own.region = context.region;
    own.quantizers = groups_[group]->quantizers(context.recipe, device, trains, name);
    const auto& delayed = groups_[group]->followed();
    if (!trains || delayed == nullptr) continue;
    context.region->add(groups_[group], delayed, options.group);
    context.region->note_training();
  }
  if (context.recipe->as_delayed_scaling() != nullptr) {
    recomputation::claim_region_end(contexts[0], asks_gradient);
  }
  for (std::size_t group = 0; group < groups_.size() && recomputation::is_active(); ++group) {
    recomputation::record_context(groups_[group].get(), contexts[group]);
  }
  return of(contexts, name);
}

Fp8Attention AttentionQuantization::begin_again(bool asks_gradient, const std::string& name) {
  Contexts contexts;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    contexts[group] = recomputation::replay_context(groups_[group].get(), name);
    recomputation::record_context(groups_[group].get(), contexts[group]);
  }
  if (contexts[0].recipe->as_delayed_scaling() != nullptr) {
    recomputation::claim_region_end(contexts[0], asks_gradient);
  }
  return of(contexts, name);
}

std::vector<LayerQuantization*> AttentionQuantization::groups() {
  make_groups();
  std::vector<LayerQuantization*> all;
  for (const auto& group : groups_) all.push_back(group.get());
  return all;
}

at::Tensor AttentionQuantization::extra_state() const {
  std::vector<at::Tensor> parts;
  for (const auto& group : groups_) {
    if (group) parts.push_back(group->extra_state());
  }
  return join_bytes(parts);
}

void AttentionQuantization::set_extra_state(const at::Tensor& bytes, const std::string& key) {
  std::vector<at::Tensor> parts = split_bytes(bytes, key);
  if (parts.empty()) parts.assign(groups_.size(), bytes);
  if (parts.size() != groups_.size()) {
    raise<UsageError>(
        "DotProductAttention: {} holds the states of {} quantizer group{}; expected {} (query, key "
        "and value; output; softmax): the entry belongs to a different module",
        key, parts.size(), parts.size() == 1 ? "" : "s", groups_.size());
  }
  make_groups();
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    groups_[group]->set_extra_state(parts[group], fmt::format("{}, {}", key, kGroupNames[group]));
  }
}

}  // namespace telens
