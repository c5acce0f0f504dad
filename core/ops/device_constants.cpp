#include "core/ops/device_constants.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <mutex>
#include <utility>

#include "core/base/error.h"
#include "core/ops/capture.h"
#include "core/ops/plain_tensors.h"

namespace telens::ops {
namespace {

// A device without an index is the current device now, and may be a different one later.
at::Device with_index(const at::Device& device) {
  if (device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

at::Tensor copied_to(const at::Device& device, const std::vector<std::int64_t>& words) {
  if (has_graphs(device) && is_capturing(at::empty({0}, at::TensorOptions(device)))) {
    raise<UsageError>(
        "constants of {} words are needed on {} for the first time during a graph capture, "
        "which cannot initialize them; run a step before the capture as a warm-up",
        words.size(), device.str());
  }
  return at::tensor(words, at::kLong).to(device);
}

// Shared by all threads that copy from it.
at::Tensor kept_on(const at::Device& device, const std::vector<std::int64_t>& words) {
  using Key = std::pair<at::DeviceType, at::DeviceIndex>;
  using OfDevice = std::map<std::vector<std::int64_t>, at::Tensor>;
  static std::mutex mutex;
  // Never destroyed: at exit, the device's allocator may be destroyed first.
  static auto* const known = new std::map<Key, OfDevice>;
  const std::lock_guard lock(mutex);
  at::Tensor& constants = (*known)[{device.type(), device.index()}][words];
  if (!constants.defined()) {
    const PlainTensors plain;
    constants = copied_to(device, words);
  }
  return constants;
}

}  // namespace

at::Tensor constants_on(const at::Device& device, const std::vector<std::int64_t>& words) {
  return device.is_cpu() ? at::tensor(words, at::kLong)
                         : kept_on(with_index(device), words).clone();
}

}  // namespace telens::ops
