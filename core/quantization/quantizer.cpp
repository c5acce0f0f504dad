#include "core/quantization/quantizer.h"

#include <typeinfo>

#include "core/base/error.h"

namespace telens {

at::Tensor flattened(const at::Tensor& x) {
  if (x.dim() == 2) {
    return x;
  }
  if (x.dim() == 0) {
    raise<ShapeError>("quantize: got a 0-dim tensor; expected [..., columns]");
  }
  return x.reshape({x.size(-1) == 0 ? 0 : x.numel() / x.size(-1), x.size(-1)});
}

std::shared_ptr<Quantizer> Quantizer::frozen_at(at::Tensor) const {
  raise<InternalError>("a quantizer to {} in {} scaling does not have a known scale to freeze",
                       get_name(format_), get_name(mode()));
}

bool Quantizer::quantizes_as(const Quantizer& other) const {
  return typeid(*this) == typeid(other) && mode() == other.mode() && format_ == other.format_ &&
         amax_reduction_group_ == other.amax_reduction_group_;
}

}  // namespace telens
