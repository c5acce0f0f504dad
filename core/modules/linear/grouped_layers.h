// The layers of a GroupedLinear under a recipe if no feature is due: one autograd function for all
// maps, with the same bits as separate maps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/modules/layer/linear_layer.h"

namespace telens {

struct GroupedLayers {
  at::Tensor input;                // [sum(rows), in], in the computation's dtype
  std::vector<std::int64_t> rows;  // input rows per map
  at::Tensor out;                  // output buffer; may be undefined
  at::Tensor dgrad_out;            // buffer of the input's gradient; may be undefined
  std::string layer;               // for messages
};

// One map: its layer and its arguments.
struct GroupedMap {
  LinearLayer& operation;
  ForwardContext context;
  Weight weight;
  at::Tensor bias;  // undefined for all maps or for none
};

// [sum(rows), out].
at::Tensor run_grouped(const GroupedLayers& grouped, std::vector<GroupedMap> maps,
                       const LinearCall& call);

}  // namespace telens
