#include "core/quantization/quantizer.h"

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

}  // namespace telens
