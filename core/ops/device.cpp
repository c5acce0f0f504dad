#include "core/ops/device.h"

#include <ATen/Version.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <cpuinfo.h>
#include <torch/library.h>

#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "core/ops/dispatcher.h"
#include "core/ops/torch_internals.h"

namespace telens::ops {
namespace {

bool find_native_bf16() {
  if (!cpuinfo_initialize()) return false;
  const bool has_instructions = cpuinfo_has_x86_avx512bf16() || cpuinfo_has_x86_amx_bf16();
  const std::string_view selected = at::get_cpu_capability();
  return has_instructions && selected != "DEFAULT" && selected != "AVX2";
}

}  // namespace

bool has_native_bf16() {
  static const bool native = find_native_bf16();
  return native;
}

bool runs_on(const c10::Device& device) {
  // Any operator works as a probe, because a backend registers all of them.
  static const auto gemm = c10::Dispatcher::singleton().findSchemaOrThrow("telens::gemm", "");
  return gemm.hasKernelForDispatchKey(c10::computeDispatchKey(std::nullopt, std::nullopt, device));
}

void check_has_kernels(const c10::Device& device, const std::string& layer) {
  // A CUDA-enabled LibTorch is not enough: this build may lack our CUDA kernels.
  if (runs_on(device)) return;
  raise<UsageError>(
      "{}: its tensors are on {}, but this build of TELens does not have kernels for it; build "
      "with CUDA (make build CUDA=ON), or move the model to the CPU",
      layer, device.str());
}

namespace {

thread_local const std::int64_t* gate = nullptr;

bool never_captures(const at::Tensor&) { return false; }

const auto& is_capturing_operator() {
  static const auto handle = find_operator<decltype(never_captures)>("telens::is_capturing");
  return handle;
}

}  // namespace

bool is_capturing(const at::Tensor& x) { return is_capturing_operator().call(x); }

bool has_graphs(const at::Device& device) {
  return is_capturing_operator().hasKernelForDispatchKey(
      c10::computeDispatchKey(std::nullopt, std::nullopt, device));
}

GateScope::GateScope(const std::int64_t* word) : before_(std::exchange(gate, word)) {}
GateScope::~GateScope() { gate = before_; }

const std::int64_t* current_gate() { return gate; }

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

TORCH_LIBRARY_IMPL(telens, CompositeExplicitAutograd, library) {
  library.impl("is_capturing", telens::ops::never_captures);
}
