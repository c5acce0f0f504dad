#include "features/block_copies.h"

#include <algorithm>
#include <memory>

#include "core/quantization/float8_block_scaling.h"
#include "core/quantization/mxfp8_scaling.h"
#include "core/quantization/nvfp4_scaling.h"

namespace telens::features {
namespace {

// Rows that a Hadamard transform takes together.
constexpr std::int64_t kHadamardRows = 16;

// The copy of a running recipe that a cast asks about; nullptr where another one runs.
const QuantizedTensor* running_copy(const InspectTensorCall& call, const CastRequest& cast) {
  const Operand* operand = cast.columnwise ? call.columnwise : call.rowwise;
  if (operand == nullptr || !is_quantized(*operand)) return nullptr;
  const auto& quantized = std::get<QuantizedTensor>(*operand);
  return block_recipe_of(quantized.mode) == cast.recipe ? &quantized : nullptr;
}

// An observer draws no random numbers: what NVFP4 would have rounded by chance is rounded to the
// nearest.
std::shared_ptr<Quantizer> nvfp4_quantizer(TensorName tensor) {
  NVFP4BlockScaling recipe;
  recipe.disable_stochastic_rounding = true;
  switch (tensor) {
    case TensorName::weight:
      return recipe.make_quantizer(TensorRole::weight, nullptr);
    case TensorName::gradient:
      return recipe.make_quantizer(TensorRole::grad_output, nullptr);
    default:
      return recipe.make_quantizer(TensorRole::input, nullptr);
  }
}

// The quantizer of a recipe's defaults.
std::shared_ptr<Quantizer> what_if_quantizer(const CastRequest& cast, TensorName tensor) {
  switch (cast.recipe) {
    case RecipeId::mxfp8:
      return std::make_shared<MXFP8Quantizer>(cast.format);
    case RecipeId::fp8_block_scaling: {
      const Float8BlockScaling recipe;
      const bool weight = tensor == TensorName::weight;
      return std::make_shared<Float8BlockQuantizer>(
          cast.format, weight ? recipe.w_block_scaling_dim : recipe.x_block_scaling_dim);
    }
    case RecipeId::nvfp4:
      return nvfp4_quantizer(tensor);
    default:
      raise<UsageError>("recipe {} has no blocks", name_of(cast.recipe));
  }
}

bool asks(std::span<const CastRequest> casts, CastRequest cast, bool columnwise) {
  cast.columnwise = columnwise;
  return std::ranges::find(casts, cast) != casts.end();
}

BlockCopy copy_of(const QuantizedTensor& quantized, bool columnwise, const at::Tensor& matrix) {
  const QuantizedData& data = columnwise ? quantized.columnwise : quantized.rowwise;
  BlockCopy copy{
      matrix, {{data.codes, data.scale_inv, data.tensor_scale}, quantized.format, quantized.mode}};
  if (!columnwise) return copy;
  // The transform is orthogonal: in FP32 the squared error is the same before it is undone and
  // after.
  if (const auto signs = quantized.blocks.hadamard_signs) {
    copy.x = ops::hadamard_transform(matrix.to(at::kFloat), *signs);
  }
  copy.x = copy.x.t();
  return copy;
}

}  // namespace

std::optional<RecipeId> block_recipe_of(ScalingMode mode) {
  switch (mode) {
    case ScalingMode::tensor:
      return std::nullopt;
    case ScalingMode::mxfp8:
      return RecipeId::mxfp8;
    case ScalingMode::block_1d:
    case ScalingMode::block_2d:
      return RecipeId::fp8_block_scaling;
    case ScalingMode::nvfp4:
      break;
  }
  return RecipeId::nvfp4;
}

std::vector<BlockCopy> block_copies(const InspectTensorCall& call, const at::Tensor& x,
                                    std::span<const CastRequest> casts) {
  std::vector<BlockCopy> copies;
  if (casts.empty() || x.numel() == 0) return copies;
  const at::Tensor matrix = flattened(x.detach());
  std::vector<std::pair<RecipeId, QuantizedTensor>> made;
  for (const CastRequest& cast : casts) {
    if (const QuantizedTensor* running = running_copy(call, cast)) {
      copies.push_back(copy_of(*running, cast.columnwise, matrix));
      continue;
    }
    auto found = std::ranges::find(made, cast.recipe, &std::pair<RecipeId, QuantizedTensor>::first);
    if (found == made.end()) {
      const auto quantizer = what_if_quantizer(cast, call.tensor_name);
      quantizer->set_usage({asks(casts, cast, false), asks(casts, cast, true)});
      found = made.insert(made.end(), {cast.recipe, quantizer->quantize(matrix)});
    }
    copies.push_back(copy_of(found->second, cast.columnwise, matrix));
  }
  return copies;
}

bool can_be_made(const StatisticName& name, TensorName tensor, const at::Tensor& x) {
  const bool transformed =
      name.what_if == RecipeId::nvfp4 && name.columnwise && tensor != TensorName::weight;
  return !transformed || x.numel() == 0 || x.numel() / x.size(-1) % kHadamardRows == 0;
}

}  // namespace telens::features
