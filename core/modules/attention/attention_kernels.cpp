#include "core/modules/attention/attention_kernels.h"

#include <ATen/Context.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "core/base/error.h"
#include "core/distributed/warn_once.h"
#include "core/ops/device_traits.h"

namespace telens {
namespace {

constexpr const char* kFlash = "NVTE_FLASH_ATTN";
constexpr const char* kFused = "NVTE_FUSED_ATTN";
constexpr const char* kUnfused = "NVTE_UNFUSED_ATTN";
constexpr const char* kNondeterministic = "NVTE_ALLOW_NONDETERMINISTIC_ALGO";

// Selects among cuDNN's kernels in Transformer Engine. LibTorch chooses here.
constexpr const char* kFusedBackend = "NVTE_FUSED_ATTN_BACKEND";

void warn_of_unread_variable() {
  const char* value = std::getenv(kFusedBackend);
  if (value == nullptr || *value == '\0') return;
  warn_once(fmt::format("{} is set but not read; {}, {} and {} switch attention kernels on and off",
                        kFusedBackend, kFlash, kFused, kUnfused));
}

// Default: true.
bool allows(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return true;
  const std::string_view text = value;
  if (text != "0" && text != "1") {
    raise<UsageError>("{}={}: expected 0 or 1; set it so, or unset it", variable, text);
  }
  return text == "1";
}

// Returns true if the variable forbids every kernel of this device whose sums have no fixed order.
bool wants_fixed_order(const at::Tensor& query) {
  return !allows(kNondeterministic) && !ops::attention_is_deterministic(query);
}

std::mutex& switches_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

AllowedAttentionKernels::Switches AllowedAttentionKernels::current() {
  const at::Context& context = at::globalContext();
  return {context.userEnabledFlashSDP(), context.userEnabledCuDNNSDP(),
          context.userEnabledMemEfficientSDP(), context.userEnabledMathSDP()};
}

void AllowedAttentionKernels::set(const Switches& switches) {
  at::Context& context = at::globalContext();
  context.setSDPUseFlash(switches.flash);
  context.setSDPUseCuDNN(switches.cudnn);
  context.setSDPUseMemEfficient(switches.efficient);
  context.setSDPUseMath(switches.math);
}

AllowedAttentionKernels::AllowedAttentionKernels(const at::Tensor& query) {
  warn_of_unread_variable();
  const bool deterministic = wants_fixed_order(query);
  const bool flash = allows(kFlash) && !deterministic;
  const bool fused = allows(kFused) && !deterministic;
  const bool unfused = allows(kUnfused);
  if (flash && fused && unfused) return;
  lock_ = std::unique_lock(switches_mutex());
  const Switches before = current();
  const Switches allowed{before.flash && flash, before.cudnn && fused, before.efficient && fused,
                         before.math && unfused};
  if (!allowed.flash && !allowed.cudnn && !allowed.efficient && !allowed.math) {
    raise<UsageError>(
        "no attention kernel is left: {}, {}, {}, {} and torch.backends.cuda switch all of them "
        "off; {} allows the one that takes everything",
        kFlash, kFused, kUnfused, kNondeterministic, setting_for_math());
  }
  set(allowed);
  before_ = before;
}

AllowedAttentionKernels::~AllowedAttentionKernels() {
  if (before_) set(*before_);
}

std::vector<std::string> kernels_switched_off(const at::Tensor& query) {
  const at::Context& context = at::globalContext();
  std::vector<std::string> sentences;
  const auto add = [&](const char* kernel, bool enabled, const char* variable) {
    if (enabled) return;
    const std::string who = !allows(variable)          ? fmt::format("{}=0", variable)
                            : wants_fixed_order(query) ? fmt::format("{}=0", kNondeterministic)
                                                       : std::string("torch.backends.cuda");
    sentences.push_back(fmt::format("{} switches {} off", who, kernel));
  };
  add("flash attention", context.userEnabledFlashSDP(), kFlash);
  if (ops::has_flash_alone(query)) return sentences;
  add("cuDNN attention", context.userEnabledCuDNNSDP(), kFused);
  add("memory-efficient attention", context.userEnabledMemEfficientSDP(), kFused);
  return sentences;
}

std::string_view setting_for_math() {
  if (!allows(kUnfused)) return "NVTE_UNFUSED_ATTN=1";
  return "torch.backends.cuda.enable_math_sdp(True)";
}

}  // namespace telens
