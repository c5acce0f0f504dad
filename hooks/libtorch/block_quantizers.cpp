#include "hooks/libtorch/block_quantizers.h"

#include "core/base/error.h"
#include "core/quantization/recipe.h"

namespace telens::features {

std::shared_ptr<BlockQuantizer> default_block_quantizer(RecipeId id, FormatId format,
                                                        TensorRole role) {
  if (!is_block_recipe(id)) raise<InternalError>("recipe {} has no blocks", get_name(id));
  const std::shared_ptr<Recipe> recipe = default_recipe(id);
  recipe->round_to_nearest();
  recipe->fp8_format = format == FormatId::e5m2 ? Fp8Format::e5m2 : Fp8Format::e4m3;
  return std::static_pointer_cast<BlockQuantizer>(recipe->make_quantizer(role, nullptr));
}

}  // namespace telens::features
