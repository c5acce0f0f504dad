// y = x A^T + b: the module Linear, and the parameters that it shares with other modules.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/modules/layer/linear_layer.h"
#include "core/modules/layer/linear_parallel.h"
#include "core/modules/module/module.h"
#include "core/modules/shared/parameter_options.h"

namespace telens {

// ---- the weight and bias of a linear map, stored whole or in named parts

// A named range of a weight's rows (output features).
struct ParameterPart {
  std::string name;  // the parameters are <name>_weight and <name>_bias
  std::optional<std::int64_t> out_features = {};  // nullopt: an equal share (resolve_split)
};

struct LinearParametersOptions {
  std::int64_t in_features;
  std::int64_t out_features;
  bool bias = true;
  std::vector<ParameterPart> split = {};  // empty for one `weight` and one `bias`
};

// Strips trailing underscores from the names of parts and gives parts without a size equal shares
// of out_features. Throws UsageError naming the module if two parts have the same name, if
// out_features is not divisible, if only some parts have a size, or if the sizes do not add up to
// out_features.
void resolve_split(const char* module, std::vector<ParameterPart>& split,
                   std::int64_t out_features);

// Returns this rank's part of a divided map; divides each part of a split weight separately. Throws
// UsageError naming the module if a size is not divisible by the ranks.
LinearParametersOptions own_parameters(const char* module, LinearParametersOptions whole,
                                       const LinearParallel& parallel);

// The parameters of a linear map. The parts of a split weight are created as views of the same
// tensor; while they are, joining them for a GEMM copies nothing.
class LinearParameters {
 public:
  using RegisterWeight = std::function<void(std::string name, Weight& slot, at::Tensor value)>;
  using RegisterTensor = std::function<void(std::string name, at::Tensor& slot, at::Tensor value)>;

  // Creates the parameters and passes them to the module's register functions.
  void make(const LinearParametersOptions& options, const ParameterOptions& parameters,
            const RegisterWeight& register_weight, const RegisterTensor& register_tensor);

  // Returns the weight [out_features, in_features], differentiable in the parts. Parts that are
  // stored in low precision stay separate (Weight::stored_parts); throws UsageError if only some
  // are.
  Weight weight() const;
  // Returns the bias [out_features], or undefined.
  at::Tensor bias() const;

 private:
  std::vector<Weight> weights_;
  std::vector<at::Tensor> biases_;
};

// ---- the module

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
