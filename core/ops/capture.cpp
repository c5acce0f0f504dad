#include "core/ops/capture.h"

#include <c10/core/TensorOptions.h>
#include <torch/library.h>

#include <optional>
#include <utility>

#include "core/ops/dispatcher.h"

namespace telens::ops {
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

}  // namespace telens::ops

TORCH_LIBRARY_IMPL(telens, CompositeExplicitAutograd, library) {
  library.impl("is_capturing", telens::ops::never_captures);
}
