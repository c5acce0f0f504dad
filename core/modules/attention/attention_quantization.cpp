#include "core/modules/attention/attention_quantization.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/formats/scheme.h"
#include "core/modules/shared/recomputation.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/delayed_scaling.h"
#include "core/quantization/extra_state.h"
#include "core/quantization/layer_quantization.h"
#include "core/quantization/recipe.h"

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

// ---- Transformer Engine's variables

namespace {

constexpr const char* kRecipe = "NVTE_DPA_FP8_RECIPE";
constexpr const char* kFormat = "NVTE_DPA_FP8_FORMAT";
constexpr const char* kAlgorithm = "NVTE_DPA_FP8DS_AMAX_ALGO";
constexpr const char* kLength = "NVTE_DPA_FP8DS_AMAX_HISTLEN";
constexpr const char* kReduce = "NVTE_DPA_FP8DS_REDUCE_AMAX";
constexpr const char* kBackward = "NVTE_FP8_DPA_BWD";
constexpr const char* kOutputInF16 = "NVTE_DPA_FP8CS_O_in_F16";

// Transformer Engine's attention supports FP8 blocks with power-of-two scales.
constexpr bool takes_blocks(const ScalingScheme& blocks) {
  return blocks.scale_format == FormatId::e8m0 && !blocks.element;
}

// The scaling scheme of these blocks.
constexpr ScalingScheme get_attention_blocks() {
  for (const ScalingMode mode : kAllScalingModes) {
    if (takes_blocks(scheme(mode))) return scheme(mode);
  }
  return scheme(ScalingMode::tensor);
}

// The recipe's name in Python.
const std::string& get_blocks_recipe_name() {
  static const std::string name = fmt::format("{}BlockScaling", get_attention_blocks().name);
  return name;
}

std::string to_text(const char* variable, std::string_view otherwise) {
  const char* value = std::getenv(variable);
  return std::string(value == nullptr || *value == '\0' ? otherwise : std::string_view(value));
}

template <typename T>
struct Named {
  std::string_view name;
  T value;
};

template <typename T>
T one_of(const char* variable, std::string_view otherwise, const std::vector<Named<T>>& values) {
  const std::string text = to_text(variable, otherwise);
  std::vector<std::string_view> names;
  for (const Named<T>& each : values) {
    if (each.name == text) return each.value;
    names.push_back(each.name);
  }
  raise<UsageError>("{}={}: expected one of {}; set it so, or unset it", variable, text,
                    fmt::join(names, ", "));
}

bool is_on(const char* variable) {
  return one_of<bool>(variable, "1", {{"0", false}, {"1", true}});
}

std::int64_t history_length() {
  const std::string text = to_text(kLength, "1");
  std::int64_t length = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
  if (error != std::errc() || end != text.data() + text.size() || length < 1) {
    raise<UsageError>("{}={}: expected a whole number from 1 on; set it so, or unset it", kLength,
                      text);
  }
  return length;
}

enum class Choice : std::uint8_t { as_given, high_precision, delayed, current, blocks };

Choice choice() {
  return one_of<Choice>(kRecipe, "",
                        {{"", Choice::as_given},
                         {"F16", Choice::high_precision},
                         {"DelayedScaling", Choice::delayed},
                         {"Float8CurrentScaling", Choice::current},
                         {get_blocks_recipe_name(), Choice::blocks}});
}

bool has_one_scale(const Recipe& recipe) {
  return recipe.as_delayed_scaling() != nullptr ||
         dynamic_cast<const Float8CurrentScaling*>(&recipe) != nullptr;
}

bool has_blocks(const Recipe& recipe) {
  // Custom recipes apply only to linear layers.
  if (has_one_scale(recipe) || dynamic_cast<const CustomRecipe*>(&recipe) != nullptr) return false;
  const auto quantizer = recipe.make_quantizer(TensorRole::input, nullptr);
  return quantizer && takes_blocks(scheme(quantizer->mode()));
}

// A four-bit recipe has no attention format. The E5M2-only format is not supported for training, as
// in linear layers.
Fp8Format format_for(const Recipe& recipe) {
  if (has_one_scale(recipe)) return recipe.fp8_format;
  const auto quantizer = recipe.make_quantizer(TensorRole::input, nullptr);
  if (!quantizer || quantizer->format() == FormatId::e4m3) return recipe.fp8_format;
  return one_of<Fp8Format>(kFormat, "HYBRID",
                           {{"HYBRID", Fp8Format::hybrid}, {"E4M3", Fp8Format::e4m3}});
}

template <typename Made>
std::shared_ptr<Made> make_recipe_like(const Recipe& recipe, std::shared_ptr<Made> made) {
  made->fp8_format = format_for(recipe);
  made->fp8_dpa = recipe.fp8_dpa;
  made->fp8_mha = recipe.fp8_mha;
  return made;
}

std::shared_ptr<const Recipe> delayed_like(const Recipe& recipe) {
  auto made = make_recipe_like(recipe, std::make_shared<DelayedScaling>());
  made->amax_history_len = history_length();
  made->amax_compute_algo = one_of<AmaxAlgorithm>(
      kAlgorithm, "most_recent",
      {{"most_recent", AmaxAlgorithm::most_recent}, {"max", AmaxAlgorithm::max}});
  made->reduce_amax = is_on(kReduce);
  return made;
}

std::shared_ptr<const Recipe> chosen(const std::shared_ptr<const Recipe>& recipe) {
  switch (choice()) {
    case Choice::high_precision:
      return nullptr;
    case Choice::delayed:
      return recipe->as_delayed_scaling() != nullptr ? recipe : delayed_like(*recipe);
    case Choice::current:
      if (dynamic_cast<const Float8CurrentScaling*>(recipe.get()) != nullptr) return recipe;
      return make_recipe_like(*recipe, std::make_shared<Float8CurrentScaling>());
    case Choice::blocks:
      return has_blocks(*recipe)
                 ? recipe
                 : make_recipe_like(*recipe, default_recipe(*get_attention_blocks().recipe));
    case Choice::as_given:
      break;
  }
  if (!has_one_scale(*recipe) && !has_blocks(*recipe)) {
    raise<UsageError>(
        "fp8_dpa of {} needs {}=DelayedScaling, Float8CurrentScaling, {} or F16: attention casts "
        "to one scale a tensor, or to FP8 in blocks of {}",
        recipe->name(), kRecipe, get_blocks_recipe_name(), get_attention_blocks().block_length);
  }
  return recipe;
}

void check_handed_casts(const Recipe& recipe) {
  if (!recipe.fp8_mha || !has_blocks(recipe)) return;
  raise<UsageError>(
      "fp8_mha is not supported for attention in blocks of {} ({}), as in Transformer Engine: "
      "its output is not quantized; set fp8_mha=False and fp8_dpa=True in the recipe",
      get_attention_blocks().block_length, get_blocks_recipe_name());
}

}  // namespace

std::shared_ptr<const Recipe> AttentionRecipes::of(const std::shared_ptr<const Recipe>& recipe) {
  std::string variables;
  for (const char* each : {kRecipe, kFormat, kAlgorithm, kLength, kReduce}) {
    variables += to_text(each, "") + '\n';
  }
  if (recipe != given_ || variables != variables_) {
    made_ = chosen(recipe);
    if (made_) check_handed_casts(*made_);
    given_ = recipe;
    variables_ = std::move(variables);
  }
  return made_;
}

bool has_fp8_backward() { return is_on(kBackward); }

bool has_output_in_high_precision() { return is_on(kOutputInF16); }

}  // namespace telens
