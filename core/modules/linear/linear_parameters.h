// The weight and bias of a linear map, stored whole or in named parts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/modules/layer/linear_parallel.h"
#include "core/modules/module/module.h"
#include "core/modules/shared/parameter_options.h"

namespace telens {

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

}  // namespace telens
