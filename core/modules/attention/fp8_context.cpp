#include "core/modules/attention/fp8_context.h"

#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "core/modules/shared/autograd_utils.h"
#include "core/quantization/chunked_quantizer.h"

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct KeptCasts final : torch::CustomClassHolder {
  explicit KeptCasts(Fp8Attention kept) : fp8(std::move(kept)) {}
  Fp8Attention fp8;
};

variable_list ended(const Fp8Attention& fp8, variable_list gradients) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (fp8.shares_scales) {
    ChunkedQuantizer cast(fp8.quantizers.d_qkv);
    std::vector<at::ScalarType> dtypes;
    for (const at::Tensor& gradient : gradients) dtypes.push_back(gradient.scalar_type());
    gradients = round_together(cast, gradients, dtypes);
    fp8.scales.input_gradients->publish(cast.scale());
  }
  if (fp8.first_in_region) fp8.region->update(/*backward=*/true);
  return gradients;
}

class EndedGradientsFunction : public torch::autograd::Function<EndedGradientsFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& query,
                               const at::Tensor& key, const at::Tensor& value,
                               const Fp8Attention* fp8) {
    context->saved_data["fp8"] = c10::IValue::make_capsule(c10::make_intrusive<KeptCasts>(*fp8));
    return {query.alias(), key.alias(), value.alias()};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto holder = context->saved_data["fp8"].toCapsule();
    const Fp8Attention& fp8 = static_cast<const KeptCasts&>(*holder).fp8;
    return translating_errors([&] {
      return naming_layer(fp8.name, [&] {
        variable_list all = ended(fp8, std::move(gradients));
        all.emplace_back();
        return all;
      });
    });
  }
};

class EndedOutputFunction : public torch::autograd::Function<EndedOutputFunction> {
 public:
  static at::Tensor forward(AutogradContext*, const at::Tensor& output, const Fp8Attention* fp8) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    ChunkedQuantizer cast(fp8->quantizers.o);
    at::Tensor values = cast.round(output, output.scalar_type());
    fp8->scales.output->publish(cast.scale());
    return values;
  }

  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0], at::Tensor()};
  }
};

}  // namespace

QueryKeyValueHeads with_ended_gradients(const QueryKeyValueHeads& heads, const Fp8Attention& fp8) {
  const variable_list same =
      EndedGradientsFunction::apply(heads.query, heads.key, heads.value, &fp8);
  return {same[0], same[1], same[2]};
}

at::Tensor end_output(const at::Tensor& output, const Fp8Attention& fp8) {
  return fp8.shares_scales || fp8.hands_output ? EndedOutputFunction::apply(output, &fp8) : output;
}

}  // namespace telens
