// y_i = x_i A_i^T + b_i for consecutive parts of an input, such as the experts of a mixture.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/modules/layer/linear_layer.h"
#include "core/modules/linear/linear.h"
#include "core/modules/module/module.h"
#include "core/modules/shared/parameter_options.h"

namespace telens {

struct GroupedLinearOptions {
  std::int64_t num_gemms = 0;
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  bool bias = true;
  bool return_bias = false;
  ParameterOptions parameters = ParameterOptions();
  std::string name = {};
  std::optional<std::int64_t> first_gemm = {};
  bool single_grouped_weight = false;
  bool single_grouped_bias = false;

  template <typename Visitor>
  static void describe(Visitor&& visit) {
    using Self = GroupedLinearOptions;
    visit("num_gemms", &Self::num_gemms, "how many linear maps");
    visit("in_features", &Self::in_features, "size of an input sample");
    visit("out_features", &Self::out_features, "size of an output sample");
    visit("bias", &Self::bias, "each map adds a learned bias");
    visit("return_bias", &Self::return_bias,
          "returns (output without biases, list of biases) so that a later operation can add them");
    ParameterOptions::describe_in<Self>(visit, &Self::parameters);
    visit("name", &Self::name, "name in debug configurations: the layers are <name>.gemm_<i>");
    ParameterOptions::describe_linear_parallel_in<Self>(visit, &Self::parameters);
    visit("first_gemm", &Self::first_gemm,
          "the number of the first map in names of layers: the rank's first expert; default: 0");
    visit("single_grouped_weight", &Self::single_grouped_weight,
          "the weights are one parameter, weight [num_gemms, out_features, in_features]");
    visit("single_grouped_bias", &Self::single_grouped_bias,
          "the biases are one parameter, bias [num_gemms, out_features]");
  }
};

struct GroupedLinearInputs {
  at::Tensor inp;                      // [sum(m_splits), in_features]
  std::vector<std::int64_t> m_splits;  // rows per map; may be 0
  std::optional<bool> is_first_microbatch = {};
  std::optional<at::Tensor> out = {};        // [sum(m_splits), out_features]
  std::optional<at::Tensor> dgrad_out = {};  // [sum(m_splits), in_features]

  template <typename Visitor>
  static void describe(Visitor&& visit) {
    using Self = GroupedLinearInputs;
    visit("inp", &Self::inp, "[sum(m_splits), in_features]");
    visit("m_splits", &Self::m_splits, "how many rows of inp go through each map, in order");
    visit("is_first_microbatch", &Self::is_first_microbatch,
          "whether to quantize and cache the weights (True), use the cached ones (False), or "
          "not cache them (None)");
    visit("out", &Self::out,
          "memory for the output, [sum(m_splits), out_features] in its dtype; the output is a view "
          "of it");
    visit("dgrad_out", &Self::dgrad_out,
          "memory for the gradient of inp, [sum(m_splits), in_features] in its dtype");
  }
};

// Parameters: weight0, weight1, ... [out_features, in_features], bias0, bias1, ... [out_features],
// or a joined weight and bias. If no feature is due, the GEMMs of all maps are one operation; under
// a recipe their casts and GEMMs are one autograd function. Each map is a layer with separate
// quantizers, amax history and cached weight.
class TELENS_EXPORT GroupedLinear : public CallableModule<GroupedLinearInputs> {
 public:
  using Options = GroupedLinearOptions;

  // In Python, the results after the output are one list, like the biases in Transformer Engine.
  static constexpr bool kListsBiases = true;

  explicit GroupedLinear(GroupedLinearOptions options);

  // Returns (output [sum(m_splits), out_features]; bias0, bias1, ... if return_bias), in the
  // activation's dtype (torch.autocast's if enabled). Flattens an input with more dimensions to a
  // matrix and restores them in the output. Throws ShapeError if m_splits does not match num_gemms
  // or inp, or if a buffer has the wrong shape.
  Outputs forward(const GroupedLinearInputs& inputs) override;

  at::Tensor extra_state() const override;
  void set_debug_name(const std::string& name) override;
  std::vector<LinearLayer*> layers() override;

  const GroupedLinearOptions& options() const { return options_; }

 protected:
  void load_extra_state(const at::Tensor& bytes, const std::string& key) override;

 private:
  struct Map {
    LinearParameters parameters;
    LinearLayer operation;
  };
  // The tensors and context of a map in one forward.
  struct MapCall {
    Weight weight;
    at::Tensor bias;  // undefined if there is none or if it is returned
    ForwardContext context;

    bool is_plain() const { return !context.plan && !context.recipe && !weight.quantized; }
    bool only_casts() const { return !context.plan && context.recipe; }
  };

  void make_parameters(const LinearParametersOptions& sizes, const LinearParallel& parallel);
  void check(const GroupedLinearInputs& inputs) const;
  std::vector<Weight> weights() const;
  std::vector<at::Tensor> biases() const;
  std::vector<MapCall> begin(const at::Tensor& input, const GroupedLinearInputs& inputs,
                             const LinearCall& call);
  at::Tensor run(const at::Tensor& input, const GroupedLinearInputs& inputs,
                 std::vector<MapCall> calls, const LinearCall& call);
  at::Tensor run_layers_as_one(const at::Tensor& input, const GroupedLinearInputs& inputs,
                               std::vector<MapCall> calls, const LinearCall& call);
  at::Tensor run_as_one(const at::Tensor& input, const GroupedLinearInputs& inputs,
                        std::vector<MapCall> calls) const;
  at::Tensor run_one_by_one(const at::Tensor& input, const GroupedLinearInputs& inputs,
                            std::vector<MapCall> calls, const LinearCall& call);

  GroupedLinearOptions options_;
  std::int64_t in_features_ = 0;  // of this rank
  std::int64_t out_features_ = 0;
  NamedLayers layers_;
  std::vector<Map> maps_;
  Weight grouped_weight_;  // the weights of all maps, if joined in a single parameter
  at::Tensor grouped_bias_;
};

}  // namespace telens
