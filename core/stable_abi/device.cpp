// Implements core/ops/device.h for libtelens_observe.so, which has only CPU kernels and no graphs.
#include "core/ops/device.h"

#include <utility>

namespace telens::ops {
namespace {

thread_local const std::int64_t* gate = nullptr;

}  // namespace

// Only products of the module core depend on it.
bool has_native_bf16() { return false; }

bool runs_on(const c10::Device& device) { return device.is_cpu(); }

void check_has_kernels(const c10::Device& device, const std::string& layer) {
  if (runs_on(device)) return;
  raise<UsageError>(
      "{}: its tensors are on {}, but this build of TELens only has kernels for the CPU; copy them "
      "to the CPU first",
      layer, device.str());
}

bool is_capturing(const at::Tensor&) { return false; }
bool has_graphs(const at::Device&) { return false; }

GateScope::GateScope(const std::int64_t* word) : before_(std::exchange(gate, word)) {}
GateScope::~GateScope() { gate = before_; }

const std::int64_t* current_gate() { return gate; }

at::Tensor constants_on(const at::Device& device, const std::vector<std::int64_t>& words) {
  return at::tensor(words, at::kLong).to(device);
}

}  // namespace telens::ops
