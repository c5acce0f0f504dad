#include "core/ops/device_constants.h"

#include <ATen/ops/tensor.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace telens::ops {
namespace {

// Shared by all who copy from it.
at::Tensor kept_on(const at::Device& device, const std::vector<std::int64_t>& words) {
  using Key = std::pair<std::string, std::vector<std::int64_t>>;
  static std::mutex mutex;
  // Never destroyed: at exit the device's allocator may be gone before it.
  static auto* const known = new std::map<Key, at::Tensor>;
  const std::lock_guard lock(mutex);
  at::Tensor& constants = (*known)[{device.str(), words}];
  if (!constants.defined()) constants = at::tensor(words, at::kLong).to(device);
  return constants;
}

}  // namespace

at::Tensor constants_on(const at::Device& device, const std::vector<std::int64_t>& words) {
  return device.is_cpu() ? at::tensor(words, at::kLong) : kept_on(device, words).clone();
}

}  // namespace telens::ops
