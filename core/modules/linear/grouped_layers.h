// The layers of a GroupedLinear under a recipe, which nothing watches: one function of autograd for
// all of its maps. Each casts and multiplies as it does by itself, with the same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/modules/layer/linear_layer.h"

namespace telens {

struct GroupedLayers {
  at::Tensor input;                // [sum(rows), in], of the dtype to compute in
  std::vector<std::int64_t> rows;  // those of the input that each map takes
  at::Tensor out;                  // where the result is to be written; undefined: anywhere
  at::Tensor dgrad_out;            // the same for the gradient of the input
  std::string layer;               // for messages
};

// One map: its layer and what it is given besides its rows.
struct GroupedMap {
  LinearLayer& operation;
  ForwardContext context;
  Weight weight;
  at::Tensor bias;  // undefined: none, as all others
};

// [sum(rows), out].
at::Tensor run_grouped(const GroupedLayers& grouped, std::vector<GroupedMap> maps,
                       const LinearCall& call);

}  // namespace telens
