#include "core/quantization/layer_quantization.h"

#include <utility>

#include "core/quantization/extra_state.h"
#include "core/quantization/recipe.h"

namespace telens {
namespace {

// Returns the request that all answers share, or nullptr if there is none. One formula updates all
// windows of a layer.
std::shared_ptr<const DelayedScaling> common_request(
    const std::array<CustomRecipe::Answer, kRoles>& answers) {
  std::shared_ptr<const DelayedScaling> common;
  for (const CustomRecipe::Answer& answer : answers) {
    const auto* request = std::get_if<std::shared_ptr<const DelayedScaling>>(&answer);
    if (request == nullptr) continue;
    if (common && common != *request) {
      raise<UsageError>(
          "CustomRecipe: qfactory returned different DelayedScalingRequests for tensors of a "
          "layer, whose histories are updated together; return equal ones");
    }
    common = *request;
  }
  return common;
}

}  // namespace

LayerQuantization::Answers LayerQuantization::ask(const CustomRecipe& recipe,
                                                  std::string_view layer) const {
  Answers answers;
  for (int index = 0; index < kRoles; ++index) {
    answers[static_cast<std::size_t>(index)] =
        recipe.qfactory({static_cast<TensorRole>(index), module_type_, layer});
  }
  return answers;
}

void LayerQuantizers::choose_gemms(const Recipe& recipe) {
  const auto mark = [&](Gemm gemm, bool quantized) {
    quantized_gemms_[static_cast<std::size_t>(gemm)] = quantized;
  };
  for (const Gemm gemm : kAllGemms) mark(gemm, !recipe.override_linear_precision.of(gemm));
  for (const TensorName operand :
       {TensorName::activation, TensorName::weight, TensorName::gradient}) {
    if ((*this)[get_role(operand)] != nullptr) continue;
    const auto [first, second] = get_gemms(operand);
    mark(first, false);
    mark(second, false);
  }
}

const LayerQuantizers& LayerQuantization::quantizers(const std::shared_ptr<const Recipe>& recipe,
                                                     const at::Device& device, bool collects_amax,
                                                     std::string_view layer) {
  if (recipe != recipe_ || device != device_) [[unlikely]] {
    make_quantizers(recipe, device, layer);
  }
  return collects_amax ? quantizers_ : evaluation_quantizers_;
}

void LayerQuantization::make_quantizers(const std::shared_ptr<const Recipe>& recipe,
                                        const at::Device& device, std::string_view layer) {
  // A custom recipe's factory may throw; the layer then keeps its previous state.
  const auto* custom = dynamic_cast<const CustomRecipe*>(recipe.get());
  const Answers answers = custom != nullptr ? ask(*custom, layer) : Answers();
  std::shared_ptr<const DelayedScaling> requested = common_request(answers);
  DelayedScalingState* state = nullptr;
  const DelayedScaling* own = recipe->as_delayed_scaling();
  std::shared_ptr<const DelayedScaling> delayed = requested;
  if (own != nullptr) delayed = {recipe, own};
  if (delayed != nullptr) {
    delayed_scaling_.prepare(*delayed, device);
    state = &delayed_scaling_;
  }
  LayerQuantizers training;
  LayerQuantizers evaluation;
  for (int index = 0; index < kRoles; ++index) {
    const auto role = static_cast<TensorRole>(index);
    training[role] =
        custom != nullptr
            ? CustomRecipe::make_answered(answers[static_cast<std::size_t>(index)], role, state)
            : recipe->make_quantizer_for({role, module_type_, layer}, state);
    if (const auto& group = amax_groups_[static_cast<std::size_t>(index)];
        group && training[role]) {
      training[role]->reduce_amax_over(group);
    }
    const at::Tensor scale = training[role] ? training[role]->known_scale() : at::Tensor();
    evaluation[role] = scale.defined() ? training[role]->frozen_at(scale) : training[role];
  }
  training.choose_gemms(*recipe);
  evaluation.choose_gemms(*recipe);
  quantizers_ = std::move(training);
  evaluation_quantizers_ = std::move(evaluation);
  requested_ = std::move(requested);
  followed_ = std::move(delayed);
  recipe_ = recipe;
  device_ = device;
  layer_ = layer;
}

void LayerQuantization::reduce_amaxes_over(TensorRole role, ProcessGroupPtr group) {
  amax_groups_[static_cast<std::size_t>(role)] = std::move(group);
  recipe_ = nullptr;
}

at::Tensor LayerQuantization::extra_state() const { return get_bytes(delayed_scaling_); }

void LayerQuantization::set_extra_state(const at::Tensor& bytes, const std::string& source) {
  delayed_scaling_.assign(state_from_bytes(bytes, source));
  recipe_ = nullptr;  // the quantizers refer to the tensors of the old state
}

}  // namespace telens
