#include "core/quantization/quantizer_like.h"

#include "core/quantization/current_scaling.h"
#include "core/quantization/float8_block_scaling.h"
#include "core/quantization/mxfp8_scaling.h"
#include "core/quantization/nvfp4_scaling.h"

namespace telens {

std::shared_ptr<Quantizer> quantizer_like(const QuantizedTensor& tensor) {
  const Usage usage{tensor.rowwise.defined(), tensor.columnwise.defined()};
  switch (tensor.mode) {
    case ScalingMode::tensor:
      return std::make_shared<CurrentScalingQuantizer>(tensor.format, CurrentScalingOptions(),
                                                       usage);
    case ScalingMode::mxfp8:
      return std::make_shared<MXFP8Quantizer>(tensor.format, tensor.blocks, usage);
    case ScalingMode::block_1d:
      return std::make_shared<Float8BlockQuantizer>(tensor.format, 1, tensor.blocks, usage);
    case ScalingMode::block_2d:
      return std::make_shared<Float8BlockQuantizer>(tensor.format, 2, tensor.blocks, usage);
    case ScalingMode::nvfp4:
      break;
  }
  return std::make_shared<NVFP4Quantizer>(tensor.blocks, usage);
}

}  // namespace telens
