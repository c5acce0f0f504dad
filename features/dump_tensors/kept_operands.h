// Keeps the operands of a layer's GEMMs before their casts, from inspect_tensor until the last GEMM
// that reads them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "core/base/names.h"
#include "core/base/tensor_handle.h"

namespace telens::features {

// Belongs to one forward and its backward. Holds references to tensors, not copies.
class KeptOperands {
 public:
  // tensor: undefined for a weight that is stored in low precision. first_row: as in
  // ObservedTensor.
  void keep(TensorName name, const TensorHandle& tensor, std::optional<std::int64_t> first_row,
            bool evaluation);

  enum class State : std::uint8_t { unseen, no_high_precision, changed, there };
  struct Original {
    State state = State::unseen;
    TensorHandle tensor = {};  // defined if the state is `there`
    std::optional<std::int64_t> first_row = std::nullopt;
  };
  // changed: written in place since keep(). The call with the last of get_gemms(name) releases the
  // tensor.
  Original find(TensorName name, Gemm gemm);

  bool evaluation() const { return evaluation_; }

 private:
  struct Kept {
    bool seen = false;
    TensorHandle tensor = {};
    std::uint32_t version = 0;
    std::optional<std::int64_t> first_row = std::nullopt;
  };
  std::array<Kept, kAllTensors.size()> kept_;
  bool evaluation_ = false;
};

}  // namespace telens::features
