// A quantizer whose class is written in Python: one of telens.pytorch's with `quantize` overridden.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>

#include "core/quantization/own_gemm.h"
#include "core/quantization/quantizer.h"

namespace telens::python {

// Format, scaling mode and what quantizers are compared by are those of the class overridden; all
// copies call the same Python object.
class PythonQuantizer final : public Quantizer {
 public:
  // object: an instance of a subclass of telens.pytorch's quantizers. Throws UsageError for another
  // one. With the GIL.
  explicit PythonQuantizer(pybind11::object object);

  using Quantizer::quantize;
  ScalingMode mode() const override { return mode_; }
  // Throws UsageError where the Python method returns anything but x quantized in this format and
  // mode, in these orientations; its own exceptions pass.
  QuantizedTensor quantize(const at::Tensor& x, Usage usage) const override;
  void quantize_into(const at::Tensor& x, QuantizedTensor& out) const override;
  void calibrate(const at::Tensor&) const override {}
  std::shared_ptr<Quantizer> copy() const override;
  bool quantizes_as(const Quantizer& other) const override;

  // With the GIL.
  pybind11::object object() const;

 private:
  // The orientations are a state of the Python object, so that one thread at a time may use it.
  struct Shared {
    std::shared_ptr<PyObject> object;
    std::mutex in_use;
  };

  PythonQuantizer(const PythonQuantizer& other);
  void check(const QuantizedTensor& made, const at::Tensor& x, Usage usage) const;

  std::shared_ptr<Shared> shared_;
  std::shared_ptr<const OwnGemm> own_gemm_;  // its qgemm; nullptr where the class has none
  ScalingMode mode_;
};

}  // namespace telens::python
