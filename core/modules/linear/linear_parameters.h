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

// Some of a weight's rows, that is, of the output features.
struct ParameterPart {
  std::string name;  // the parameters are <name>_weight and <name>_bias
  std::optional<std::int64_t> out_features = {};  // none: an equal share (settle_split)
};

struct LinearParametersOptions {
  std::int64_t in_features;
  std::int64_t out_features;
  bool bias = true;
  std::vector<ParameterPart> split = {};  // empty: one `weight` and one `bias`
};

// Strips trailing underscores from the names of parts, and gives parts without a number of rows
// equal shares of out_features. Throws UsageError naming the module if two parts have one name, if
// the shares do not divide out_features, if only some parts have a number, or if the numbers do not
// add up to out_features.
void settle_split(const char* module, std::vector<ParameterPart>& split, std::int64_t out_features);

// This rank's part of a divided map; each part of a split weight is divided by itself. Throws
// UsageError naming the module where the ranks do not divide a size.
LinearParametersOptions own_parameters(const char* module, LinearParametersOptions whole,
                                       const LinearParallel& parallel);

// The parts of a split weight are made as views of one tensor. As long as they are, joining them
// for a GEMM copies nothing.
class LinearParameters {
 public:
  using RegisterWeight = std::function<void(std::string name, Weight& slot, at::Tensor value)>;
  using RegisterTensor = std::function<void(std::string name, at::Tensor& slot, at::Tensor value)>;

  // Makes the parameters and hands them to the module's own register functions.
  void make(const LinearParametersOptions& options, const ParameterOptions& parameters,
            const RegisterWeight& register_weight, const RegisterTensor& register_tensor);

  // [out_features, in_features]. Differentiable in the parts. Split parts that are
  // stored in low precision stay apart (Weight::stored_parts); throws UsageError if only some are.
  Weight weight() const;
  // [out_features], or undefined.
  at::Tensor bias() const;

 private:
  std::vector<Weight> weights_;
  std::vector<at::Tensor> biases_;
};

}  // namespace telens
