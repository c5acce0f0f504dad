// The precision of a training step, by name.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/quantization/autocast.h"

namespace gpt {

// "fp32", "bf16" (torch.autocast on the device), or a recipe such as "delayed": quantized layers
// inside of torch.autocast.
class Precision {
 public:
  explicit Precision(const std::string& name, at::DeviceType device);

  // Active during its lifetime, which must cover a forward.
  class Region {
   public:
    // group: the ranks over which amaxes are reduced; null if they stay local to this rank.
    explicit Region(const Precision& precision, const telens::ProcessGroupPtr& group = nullptr);
    ~Region();
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

   private:
    bool autocast_;
    at::DeviceType device_;
    std::optional<telens::Autocast> fp8_;
  };

 private:
  bool autocast_;
  at::DeviceType device_;
  std::shared_ptr<const telens::Recipe> recipe_;  // null without FP8
};

}  // namespace gpt
