#include "core/modules/attention/attention_recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/delayed_scaling.h"

namespace telens {
namespace {

constexpr const char* kRecipe = "NVTE_DPA_FP8_RECIPE";
constexpr const char* kFormat = "NVTE_DPA_FP8_FORMAT";
constexpr const char* kAlgorithm = "NVTE_DPA_FP8DS_AMAX_ALGO";
constexpr const char* kLength = "NVTE_DPA_FP8DS_AMAX_HISTLEN";
constexpr const char* kReduce = "NVTE_DPA_FP8DS_REDUCE_AMAX";
constexpr const char* kBackward = "NVTE_FP8_DPA_BWD";

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

enum class Choice : std::uint8_t { as_given, high_precision, delayed, current };

Choice choice() {
  const std::string text = to_text(kRecipe, "");
  if (text.ends_with("BlockScaling")) {
    raise<UsageError>(
        "{}={} is not supported: attention casts to one scale a tensor; set DelayedScaling, "
        "Float8CurrentScaling or F16",
        kRecipe, text);
  }
  return one_of<Choice>(kRecipe, "",
                        {{"", Choice::as_given},
                         {"F16", Choice::high_precision},
                         {"DelayedScaling", Choice::delayed},
                         {"Float8CurrentScaling", Choice::current}});
}

bool has_one_scale(const Recipe& recipe) {
  return recipe.as_delayed_scaling() != nullptr ||
         dynamic_cast<const Float8CurrentScaling*>(&recipe) != nullptr;
}

// A recipe of four bits has no format for attention. As elsewhere, E5M2 alone trains nothing.
Fp8Format format_for(const Recipe& recipe) {
  if (has_one_scale(recipe)) return recipe.fp8_format;
  const auto quantizer = recipe.make_quantizer(TensorRole::input, nullptr);
  if (!quantizer || quantizer->format() == FormatId::e4m3) return recipe.fp8_format;
  return one_of<Fp8Format>(kFormat, "HYBRID",
                           {{"HYBRID", Fp8Format::hybrid}, {"E4M3", Fp8Format::e4m3}});
}

template <typename Made>
std::shared_ptr<Made> made_like(const Recipe& recipe) {
  auto made = std::make_shared<Made>();
  made->fp8_format = format_for(recipe);
  made->fp8_dpa = recipe.fp8_dpa;
  made->fp8_mha = recipe.fp8_mha;
  return made;
}

std::shared_ptr<const Recipe> delayed_like(const Recipe& recipe) {
  auto made = made_like<DelayedScaling>(recipe);
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
      return made_like<Float8CurrentScaling>(*recipe);
    case Choice::as_given:
      break;
  }
  if (!has_one_scale(*recipe)) {
    raise<UsageError>(
        "fp8_dpa of {} needs {}=DelayedScaling, Float8CurrentScaling or F16: attention casts to "
        "one scale a tensor",
        recipe->name(), kRecipe);
  }
  return recipe;
}

}  // namespace

std::shared_ptr<const Recipe> AttentionRecipes::of(const std::shared_ptr<const Recipe>& recipe) {
  std::string variables;
  for (const char* each : {kRecipe, kFormat, kAlgorithm, kLength, kReduce}) {
    variables += to_text(each, "") + '\n';
  }
  if (recipe != given_ || variables != variables_) {
    made_ = chosen(recipe);
    given_ = recipe;
    variables_ = std::move(variables);
  }
  return made_;
}

bool has_fp8_backward() { return is_on(kBackward); }

}  // namespace telens
