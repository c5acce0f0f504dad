#include "features/engine/block_quantizers.h"

#include "core/quantization/float8_block_scaling.h"
#include "core/quantization/mxfp8_scaling.h"
#include "core/quantization/nvfp4_scaling.h"

namespace telens::features {
namespace {

// The recipe must be one of blocks.
std::shared_ptr<BlockQuantizer> quantizer_of(Recipe& recipe, FormatId format, TensorRole role) {
  recipe.fp8_format = format == FormatId::e5m2 ? Fp8Format::e5m2 : Fp8Format::e4m3;
  return std::static_pointer_cast<BlockQuantizer>(recipe.make_quantizer(role, nullptr));
}

}  // namespace

std::shared_ptr<BlockQuantizer> default_block_quantizer(RecipeId recipe, FormatId format,
                                                        TensorRole role) {
  switch (recipe) {
    case RecipeId::mxfp8: {
      MXFP8BlockScaling defaults;
      return quantizer_of(defaults, format, role);
    }
    case RecipeId::fp8_block_scaling: {
      Float8BlockScaling defaults;
      return quantizer_of(defaults, format, role);
    }
    case RecipeId::nvfp4: {
      NVFP4BlockScaling defaults;
      defaults.disable_stochastic_rounding = true;
      return quantizer_of(defaults, format, role);
    }
    default:
      raise<UsageError>("recipe {} has no blocks", name_of(recipe));
  }
}

}  // namespace telens::features
