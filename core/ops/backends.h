// The devices for which the operators have kernels.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "core/base/error.h"

namespace telens::ops {

// Returns true if this build has kernels for the device's type. "meta" counts: shapes have kernels.
TELENS_EXPORT bool runs_on(const c10::Device& device);

// Throws UsageError naming the layer and the device unless runs_on(device).
TELENS_EXPORT void check_has_kernels(const c10::Device& device, const std::string& layer);
// Like check_has_kernels, but without a call for the CPU, for which every build has kernels.
inline void check_runs_on(const c10::Device& device, const std::string& layer) {
  if (!device.is_cpu()) check_has_kernels(device, layer);
}

}  // namespace telens::ops
