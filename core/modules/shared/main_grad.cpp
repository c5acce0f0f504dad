#include "core/modules/shared/main_grad.h"

#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace telens {
namespace {

// C++ parameters have no attributes.
class KnownMainGrads {
 public:
  void set(const at::Tensor& parameter, at::Tensor main_grad) {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [](const auto& entry) { return entry.second.parameter.expired(); });
    entries_.erase(parameter.unsafeGetTensorImpl());
    if (main_grad.defined()) {
      entries_.emplace(parameter.unsafeGetTensorImpl(),
                       Entry{Entry::Parameter(parameter.getIntrusivePtr()), std::move(main_grad)});
    }
  }

  at::Tensor find(const at::Tensor& parameter) {
    const std::lock_guard lock(mutex_);
    const auto entry = entries_.find(parameter.unsafeGetTensorImpl());
    const bool known = entry != entries_.end() && !entry->second.parameter.expired();
    return known ? entry->second.main_grad : at::Tensor();
  }

 private:
  struct Entry {
    using Parameter = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
    Parameter parameter;
    at::Tensor main_grad;
  };
  std::mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, Entry> entries_;
};

KnownMainGrads& known() {
  static KnownMainGrads grads;
  return grads;
}

std::unique_ptr<MainGradSource>& source() {
  static std::unique_ptr<MainGradSource> installed;
  return installed;
}

bool is_summed_in(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

void check(const MainGrad& target, const at::Tensor& parameter, const std::string& layer) {
  const at::Tensor& buffer = target.buffer;
  if (!buffer.defined()) {
    raise<UsageError>(
        "{}: fuse_wgrad_accumulation adds the gradient of a weight {} to its main_grad, which "
        "is missing; set weight.main_grad to zeros of that shape, FP32, BF16 or FP16, before "
        "the backward (FSDP replaces parameters: disable fuse_wgrad_accumulation there)",
        layer, c10::str(parameter.sizes()));
  }
  if (!is_summed_in(buffer.scalar_type()) || buffer.sizes() != parameter.sizes() ||
      buffer.device() != parameter.device()) {
    raise<UsageError>(
        "{}: main_grad has shape {} and dtype {} on {}; expected {} and Float, BFloat16 or Half on "
        "{}",
        layer, c10::str(buffer.sizes()), c10::toString(buffer.scalar_type()), buffer.device().str(),
        c10::str(parameter.sizes()), parameter.device().str());
  }
  if (!target.wants_gradient && is_reduced_by_torch(parameter)) {
    raise<UsageError>(
        "{}: torch's DistributedDataParallel averages .grad, which fuse_wgrad_accumulation "
        "leaves empty, so the weights of the ranks would diverge; disable "
        "fuse_wgrad_accumulation, or exclude the weight from DDP and reduce main_grad yourself",
        layer);
  }
}

}  // namespace

bool is_reduced_by_torch(const at::Tensor& parameter) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (!accumulator) return false;
  // DistributedDataParallel registers C++ post hooks at the accumulation of .grad.
  const auto& hooks = accumulator->post_hooks();
  return std::any_of(hooks.begin(), hooks.end(), [](const auto& hook) {
    return dynamic_cast<const torch::autograd::utils::LambdaPostHook*>(hook.get()) != nullptr;
  });
}

void set_main_grad(const at::Tensor& parameter, at::Tensor main_grad) {
  known().set(parameter, std::move(main_grad));
}

void set_main_grad_source(std::unique_ptr<MainGradSource> installed) {
  source() = std::move(installed);
}

MainGrad get_main_grad(const at::Tensor& parameter, const std::string& layer) {
  MainGrad target{.buffer = known().find(parameter)};
  if (!target.buffer.defined() && source()) target = source()->find(parameter);
  check(target, parameter, layer);
  return target;
}

at::Tensor placeholder_gradient(const MainGrad& target, const at::Tensor& parameter) {
  if (!target.wants_gradient) return {};
  source()->added(parameter);
  return at::zeros(parameter.sizes(), parameter.options().requires_grad(false));
}

}  // namespace telens
