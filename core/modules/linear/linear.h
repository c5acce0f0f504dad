// y = x A^T + b.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/modules/layer/linear_layer.h"
#include "core/modules/layer/overlap_switches.h"
#include "core/modules/linear/linear_parameters.h"
#include "core/modules/module/module.h"
#include "core/modules/shared/parameter_options.h"

namespace telens {

struct LinearOptions {
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  bool bias = true;
  bool return_bias = false;
  ParameterOptions parameters =
      ParameterOptions();  // dtype, device and initialization, common to all modules
  std::string name = {};   // in debug configurations
  std::vector<ParameterPart> parameters_split = {};
  OverlapSwitches overlap = OverlapSwitches();

  template <typename Visitor>
  static void describe(Visitor&& visit) {
    visit("in_features", &LinearOptions::in_features, "size of an input sample");
    visit("out_features", &LinearOptions::out_features, "size of an output sample");
    visit("bias", &LinearOptions::bias, "adds a learned bias");
    visit("return_bias", &LinearOptions::return_bias,
          "returns (output without bias, bias) so that a later operation can add it");
    ParameterOptions::describe_in<LinearOptions>(visit, &LinearOptions::parameters);
    visit("name", &LinearOptions::name, "name in debug configurations");
    visit("parameters_split", &LinearOptions::parameters_split,
          "rows per part of a weight that is stored in parts, <part>_weight and <part>_bias; "
          "only names: equal parts");
    ParameterOptions::describe_linear_parallel_in<LinearOptions>(visit, &LinearOptions::parameters);
    ParameterOptions::describe_symmetric_in<LinearOptions>(visit, &LinearOptions::parameters);
    OverlapSwitches::describe_named_in<LinearOptions>(visit, &LinearOptions::overlap);
  }
};

struct LinearInputs {
  at::Tensor inp;  // [..., in_features]; row: [..., in_features / tp_size]
  std::optional<bool> is_first_microbatch = {};  // caches the quantized weight in the first
  bool fp8_output = false;
  bool fp8_grad = false;

  template <typename Visitor>
  static void describe(Visitor&& visit) {
    visit("inp", &LinearInputs::inp, "[..., in_features]");
    visit("is_first_microbatch", &LinearInputs::is_first_microbatch,
          "whether to quantize and cache the weight (True), use the cached one (False), or not "
          "cache it (None)");
    visit("fp8_output", &LinearInputs::fp8_output,
          "quantizes the output under a recipe, so that the next layer does not cast it again");
    visit("fp8_grad", &LinearInputs::fp8_grad,
          "quantizes the input's gradient under a recipe, so that the previous layer does not "
          "cast it again");
  }
};

// Parameters: weight [out_features, in_features], bias [out_features]. In a divided layer, this
// rank's part: column [out_features / tp_size, in_features], row [out_features, in_features /
// tp_size].
class TELENS_EXPORT Linear : public CallableModule<LinearInputs> {
 public:
  using Options = LinearOptions;

  explicit Linear(LinearOptions options);

  // Returns [..., out_features] in the activation's dtype (torch.autocast's if enabled).
  Outputs forward(const LinearInputs& inputs) override;
  at::Tensor forward(const at::Tensor& inp) {
    return forward(LinearInputs{inp, {}, false, false})[0];
  }

  at::Tensor extra_state() const override;
  void set_debug_name(const std::string& name) override;
  std::vector<LinearLayer*> layers() override { return {&operation_}; }

  const LinearOptions& options() const { return options_; }

 protected:
  void load_extra_state(const at::Tensor& bytes, const std::string& key) override;

 private:
  LinearOptions options_;
  LinearParameters parameters_;
  LinearLayer operation_;
};

}  // namespace telens
