#include "precision.h"

#include <ATen/autocast_mode.h>

#include "core/quantization/block_scaling.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/delayed_scaling.h"

namespace gpt {

Precision::Precision(const std::string& name, at::DeviceType device)
    : autocast_(name != "fp32"), device_(device) {
  if (name == "delayed") {
    recipe_ = std::make_shared<telens::DelayedScaling>();
  } else if (name == "current") {
    recipe_ = std::make_shared<telens::Float8CurrentScaling>();
  } else if (name == "mxfp8") {
    recipe_ = std::make_shared<telens::MXFP8BlockScaling>();
  } else if (name == "block") {
    recipe_ = std::make_shared<telens::Float8BlockScaling>();
  } else if (name == "nvfp4") {
    recipe_ = std::make_shared<telens::NVFP4BlockScaling>();
  } else if (name != "bf16" && name != "fp32") {
    telens::raise<telens::UsageError>(
        "recipe '{}' is unknown; expected delayed, current, mxfp8, block, nvfp4, bf16 or fp32",
        name);
  }
}

Precision::Region::Region(const Precision& precision, const telens::ProcessGroupPtr& group)
    : autocast_(precision.autocast_), device_(precision.device_) {
  if (autocast_) {
    at::autocast::set_autocast_dtype(device_, at::kBFloat16);
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::increment_nesting();
  }
  if (precision.recipe_) {
    fp8_.emplace(telens::AutocastOptions{.recipe = precision.recipe_, .group = group});
  }
}

Precision::Region::~Region() {
  fp8_.reset();
  if (!autocast_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, false);
}

}  // namespace gpt
