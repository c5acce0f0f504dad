// A layer as observing features see it: its tensors as handles, and their quantization. No
// LibTorch: hooks/libtorch/observation.cpp creates these structs from the calls of
// core/hook_points.h, which must outlive them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/names.h"
#include "core/base/tensor_handle.h"
#include "core/formats/format_id.h"
#include "core/formats/scheme.h"
#include "core/layer_hooks.h"
#include "core/quantization/block_options.h"
#include "hooks/rank_group.h"

namespace telens {

class Quantizer;
class Recipe;
struct InspectTensorCall;
struct InspectPostquantizeCall;
struct InspectGemmCall;
struct InspectAttentionCall;

namespace ops {
struct AttentionScores;  // core/ops/attention.h
}

// One orientation of a quantized matrix; core/quantization/quantized_tensor.h has the layouts.
struct QuantizedCodes {
  TensorHandle codes;  // undefined if this orientation does not exist
  TensorHandle scale_inv;
  TensorHandle tensor_scale;  // undefined except for NVFP4

  bool defined() const { return codes.defined(); }
};

// An operand of a GEMM, in high precision or quantized.
class TELENS_EXPORT ObservedOperand {
 public:
  // No operand.
  ObservedOperand() = default;
  // The address of an Operand; nullptr for no operand.
  static ObservedOperand from(const void* operand);

  bool defined() const { return source_ != nullptr; }
  bool is_quantized() const { return is_quantized_; }
  // Returns true if both are the same object.
  bool is_same(const ObservedOperand& other) const { return source_ == other.source_; }

  // Only for an operand in high precision.
  TensorHandle plain() const;

  // Only for a quantized operand.
  FormatId format() const { return format_; }
  ScalingMode mode() const { return mode_; }
  bool has(bool columnwise) const { return columnwise ? has_columnwise_ : has_rowwise_; }
  // The shape of the high-precision tensor.
  std::span<const std::int64_t> sizes() const { return sizes_; }
  QuantizedCodes codes(bool columnwise) const;
  const BlockOptions& blocks() const;
  // Returns the values in high precision, with the shape sizes().
  TensorHandle dequantize() const;

  // Returns the codes, or the tensor in high precision.
  TensorHandle data() const;

  const void* source() const { return source_; }

 private:
  const void* source_ = nullptr;
  bool is_quantized_ = false;
  bool has_rowwise_ = false;
  bool has_columnwise_ = false;
  FormatId format_ = FormatId::e4m3;
  ScalingMode mode_ = ScalingMode::tensor;
  std::span<const std::int64_t> sizes_;
};

// The quantizer of a tensor.
struct TELENS_EXPORT ObservedQuantizer {
  ScalingMode mode = ScalingMode::tensor;
  FormatId format = FormatId::e4m3;
  // The number of updates of the amax history; nullopt if there is no history.
  std::optional<std::int64_t> history_updates = std::nullopt;
  const Quantizer* source = nullptr;

  bool follows_history() const { return history_updates.has_value(); }
  // Returns the scale (FP32, 1 element) if it is known before the tensor is read, else an undefined
  // handle.
  TensorHandle known_scale() const;
  // Returns the group over which the tensor's amax is reduced; null if the scale does not come from
  // an amax or uses only the amax of this rank.
  RankGroupPtr amax_group() const;
  // Returns true for current scaling: scale_for() computes the scale of a tensor (FP32, 1 element).
  bool uses_current_scaling() const;
  TensorHandle scale_for(const TensorHandle& x) const;
};

// The recipe that a layer runs under.
struct ObservedRecipe {
  std::string_view name = {};
  // By GEMM: it runs in high precision although the recipe quantizes.
  std::array<bool, kAllGemms.size()> overridden = {};
  bool dequantized_backward = false;
};

// The delayed scaling that the histories of a layer follow.
struct ObservedDelayedScaling {
  std::int64_t margin = 0;
  bool reduce_amax = false;
};

// A tensor of a layer, before quantization.
struct TELENS_EXPORT ObservedTensor {
  ObservedTensor() = default;
  ObservedTensor(const InspectTensorCall& call);  // NOLINT(google-explicit-constructor)

  TensorName tensor_name = TensorName::activation;
  TensorHandle tensor = {};         // undefined for weights that are stored in FP8, and for scores
  ObservedOperand rowwise = {};     // operand of the first GEMM; none for outputs
  ObservedOperand columnwise = {};  // operand of the second GEMM; none for outputs
  std::optional<ObservedQuantizer> quantizer = {};  // nullopt outside fp8_autocast and for outputs
  // The tensor-parallel group; null if it has a single rank.
  RankGroupPtr parallel_group = {};
  std::int64_t parallel_size = 1;
  bool first_microbatch = true;               // false if a cached weight is reused
  std::optional<ObservedRecipe> recipe = {};  // inputs: nullopt outside of a recipe
  // Inputs: nullopt if the layer's histories follow none. `follows_delayed`: this tensor's scale
  // comes from such a history.
  std::optional<ObservedDelayedScaling> delayed = {};
  bool follows_delayed = false;
  TensorHandle bias = {};         // output: the bias that fprop has added
  bool rowwise_modified = false;  // modify_tensor created this operand, instead of the quantizer
  bool columnwise_modified = false;
  bool evaluation = false;
  bool replicated = false;  // each rank of parallel_group has this whole tensor
  bool summed = false;      // outputs: summed over the ranks of parallel_group
  // The index at which the rows of `tensor` begin, if the GEMMs read rows from every rank of
  // parallel_group; nullopt if the GEMMs read only these rows.
  std::optional<std::int64_t> first_row = {};
  const ops::AttentionScores* scores = nullptr;  // only for TensorName::scores
  const InspectTensorCall* source = nullptr;

  // Returns the tensor, or the data of the first operand if the tensor does not exist, or the
  // queries of scores.
  TensorHandle data() const;
};

// The result of a cast or of modify_tensor, which feeds a GEMM.
struct TELENS_EXPORT ObservedCopy {
  ObservedCopy(const InspectPostquantizeCall& call);  // NOLINT(google-explicit-constructor)

  Gemm gemm;
  TensorName tensor_name;
  ObservedOperand tensor;
  bool rowwise;  // true if it feeds the tensor's first GEMM
  const InspectPostquantizeCall* source;
};

// The tokens with which a GEMM's operands were padded.
struct ObservedPadding {
  std::int64_t tokens = 0;
  std::int64_t padded = 0;    // tokens of the GEMM
  std::int64_t multiple = 1;  // `padded` is a multiple of it

  bool needed() const { return padded != tokens; }
};

// A GEMM that has just run.
struct TELENS_EXPORT ObservedGemm {
  ObservedGemm(const InspectGemmCall& call);  // NOLINT(google-explicit-constructor)

  Gemm gemm;
  TensorName a_name;
  TensorName b_name;
  ObservedOperand a;
  ObservedOperand b;
  TensorHandle bias;                     // fprop's; may be undefined
  TensorHandle output;                   // before modify_tensor
  std::optional<ObservedRecipe> recipe;  // nullopt if no recipe quantizes
  std::optional<ObservedQuantizer> a_quantizer;
  std::optional<ObservedQuantizer> b_quantizer;
  bool split_accumulator;
  // Literals: the kernel, and the reason if it is not the fastest one.
  std::string_view kernel;
  std::string_view kernel_reason;
  const GemmOverlapNote* overlap;  // nullptr if the layer has not requested an overlap
  const InspectGemmCall* source;

  ObservedPadding padding() const;
};

// An attention that has just run.
struct TELENS_EXPORT ObservedAttention {
  ObservedAttention(const InspectAttentionCall& call);  // NOLINT(google-explicit-constructor)

  TensorHandle query;       // [batch, heads, seq, size], in the dtype that the attention runs in
  std::string_view kernel;  // "" if no kernel was chosen
  std::string_view reason;  // why no faster kernel was chosen; "" if there is none
  DType computed_in;        // the dtype in which the kernel receives queries, keys and values
  std::string_view widened_by;  // the reason if that is not their dtype
  std::string_view cast_to;     // the FP8 format to which the recipe casts them; "" if none
  ScalingMode cast_in;          // the scaling of that cast
  const InspectAttentionCall* source;
};

}  // namespace telens
