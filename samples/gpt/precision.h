// The precision of a training step, by name.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/quantization/autocast.h"

namespace gpt {

// fp32; bf16: torch.autocast on the device; delayed, current, ...: quantized layers within it.
class Precision {
 public:
  explicit Precision(const std::string& name, at::DeviceType device);

  // In force for the lifetime of the object: to be held during a forward.
  class Region {
   public:
    // group: the ranks that share scales; null if this rank does not share them.
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
