// Quantizers turn high-precision tensors into QuantizedTensors; each scaling recipe has a subclass.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "core/distributed/process_group.h"
#include "core/quantization/quantized_tensor.h"

namespace telens {

// The orientations to produce.
struct Usage {
  bool rowwise = true;
  bool columnwise = true;
};

// Returns x as the matrix [numel / size(-1), size(-1)]. Throws ShapeError for a 0-dim tensor.
at::Tensor flattened(const at::Tensor& x);

// Thread-safe: quantizing changes no members.
class TELENS_EXPORT Quantizer {
 public:
  explicit Quantizer(FormatId format, Usage usage = {}) : format_(format), usage_(usage) {}
  virtual ~Quantizer() = default;

  virtual ScalingMode mode() const = 0;

  // Quantizes x (BF16, FP16 or FP32, at least 1-D) as the matrix [numel/size(-1), size(-1)], in the
  // orientations of `usage`. Throws ShapeError if the format does not support the shape.
  virtual QuantizedTensor quantize(const at::Tensor& x, Usage usage) const = 0;

  // Quantizes in the orientations of usage().
  QuantizedTensor quantize(const at::Tensor& x) const { return quantize(x, usage_); }

  // Quantizes into the existing storage of `out`, which a captured graph or a running GEMM may
  // refer to (weight caches). Shapes, format and mode of `out` must match the result of this
  // quantizer. Skips orientations that `out` does not have.
  virtual void quantize_into(const at::Tensor& x, QuantizedTensor& out) const = 0;

  // Updates the amax like quantize(), without quantizing.
  virtual void calibrate(const at::Tensor& x) const = 0;

  // Returns the multiple that both GEMM dimensions of a tensor must have.
  std::int64_t alignment() const { return scheme(mode()).row_multiple; }

  virtual std::shared_ptr<Quantizer> copy() const = 0;

  // Returns true if both produce the same result for a tensor, orientations aside. All scales from
  // an amax history count as equal.
  virtual bool quantizes_as(const Quantizer& other) const;

  // Returns the scale that the next quantize() multiplies by (FP32, 1 element) if it is known
  // before the tensor is read, as in delayed scaling. Otherwise returns an undefined tensor.
  virtual at::Tensor known_scale() const { return {}; }

  // Returns the running amax (FP32, 1 element) that the next quantize() raises to the tensor's
  // amax, or an undefined tensor if there is none.
  virtual at::Tensor running_amax() const { return {}; }

  // Returns a quantizer with the fixed scale `scale` that does not update an amax history, for
  // evaluation and for recomputing an earlier forward. Throws InternalError without a
  // known_scale().
  virtual std::shared_ptr<Quantizer> frozen_at(at::Tensor scale) const;

  // Returns the number of updates of the amax history, or nullopt if there is none.
  virtual std::optional<std::int64_t> history_updates() const { return {}; }
  bool follows_history() const { return history_updates().has_value(); }

  FormatId format() const { return format_; }
  // The default for quantize(); layers pass the orientations for each call.
  Usage usage() const { return usage_; }
  void set_usage(Usage usage) { usage_ = usage; }

  // Reduces the tensor's amax over `group` if the scale comes from that amax (current scaling,
  // NVFP4). All ranks of the group must then quantize at the same time. If `group` is nullptr, uses
  // this rank's amax. No effect on other quantizers.
  void reduce_amax_over(ProcessGroupPtr group) { amax_reduction_group_ = std::move(group); }
  const ProcessGroupPtr& amax_reduction_group() const { return amax_reduction_group_; }

 private:
  FormatId format_;
  Usage usage_;
  ProcessGroupPtr amax_reduction_group_;
};

}  // namespace telens
