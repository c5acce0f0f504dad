#include "core/modules/attention/attention_recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/formats/scheme.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/custom_recipe.h"
#include "core/quantization/delayed_scaling.h"
#include "core/quantization/scheme_quantizers.h"

namespace telens {
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
  return blocks.scale_format == FormatId::e8m0 && !blocks.packed_fp4;
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
