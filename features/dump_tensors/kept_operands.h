// Keeps the operands of a layer's GEMMs before their casts, from inspect_tensor until the last GEMM
// that reads them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>

#include "core/base/names.h"

namespace telens::features {

// Belongs to one forward and its backward. Holds references to tensors, not copies.
class KeptOperands {
 public:
  // tensor: nullptr for a weight that is stored in low precision. first_row: as in
  // InspectTensorCall.
  void keep(TensorName name, const at::Tensor* tensor, std::optional<std::int64_t> first_row,
            bool evaluation);

  enum class State : std::uint8_t { unseen, no_high_precision, changed, there };
  struct Original {
    State state = State::unseen;
    at::Tensor tensor = {};  // defined if the state is `there`
    std::optional<std::int64_t> first_row = std::nullopt;
  };
  // changed: written in place since keep(). The call with the last of get_gemms(name) releases the
  // tensor.
  Original find(TensorName name, Gemm gemm);

  bool evaluation() const { return evaluation_; }

 private:
  struct Kept {
    bool seen = false;
    at::Tensor tensor = {};
    std::uint32_t version = 0;
    std::optional<std::int64_t> first_row = std::nullopt;
  };
  std::array<Kept, kAllTensors.size()> kept_;
  bool evaluation_ = false;
};

}  // namespace telens::features
