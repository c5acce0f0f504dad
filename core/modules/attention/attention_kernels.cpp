#include "core/modules/attention/attention_kernels.h"

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/distributed/warn_once.h"
#include "core/ops/device.h"

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

// Returns true if every kernel of scaled_dot_product_attention that LibTorch would choose gives the
// same bits in each run. On CUDA, the flash and memory-efficient kernels add up gradients in any
// order unless torch.use_deterministic_algorithms(True) requests a fixed order; cuDNN is then not
// chosen.
bool is_deterministic(const at::Tensor& query) {
  const at::Context& context = at::globalContext();
  return ops::is_on_host(query) ||
         (context.deterministicAlgorithms() && !context.deterministicAlgorithmsWarnOnly());
}

// Returns true if the variable forbids every kernel of this device whose sums have no fixed order.
bool wants_fixed_order(const at::Tensor& query) {
  return !allows(kNondeterministic) && !is_deterministic(query);
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

// ---- the kernel that LibTorch chooses

namespace {

using at::SDPBackend;

// LibTorch throws if no enabled kernel supports the arguments.
SDPBackend get_kernel(const ScaledAttention& attention) {
  try {
    return static_cast<SDPBackend>(at::_fused_sdp_choice(
        attention.query, attention.key, attention.value, attention.mask, attention.dropout,
        attention.is_causal, attention.scale, attention.grouped));
  } catch (const c10::Error&) {
    return SDPBackend::error;
  }
}

std::string_view kernel_name(SDPBackend kernel) {
  switch (kernel) {
    case SDPBackend::flash_attention:
      return "flash attention";
    case SDPBackend::efficient_attention:
      return "memory-efficient attention";
    case SDPBackend::cudnn_attention:
      return "cuDNN attention";
    case SDPBackend::math:
      return "math attention";
    default:
      break;
  }
  return "attention of the device";
}

// Larger is faster. Flash and cuDNN rank equally: LibTorch chooses between them by GPU.
int get_speed(SDPBackend kernel) {
  switch (kernel) {
    case SDPBackend::error:
      return -1;
    case SDPBackend::math:
      return 0;
    case SDPBackend::efficient_attention:
      return 1;
    default:
      break;
  }
  return 2;
}

// A possible obstacle for a kernel, and a variant of the arguments without it.
struct Obstacle {
  std::string name;
  std::function<void(ScaledAttention&)> remove;
};

std::string_view dtype_name(at::ScalarType dtype) {
  return dtype == at::kFloat ? "FP32" : dtype == at::kDouble ? "FP64" : c10::toString(dtype);
}

std::string in_words(const std::vector<std::string_view>& names) {
  return fmt::format("{}", fmt::join(names, " and "));
}

// A tensor of this shape for queries; stores one head's elements.
at::Tensor like(const at::Tensor& tensor, std::int64_t heads, at::ScalarType dtype) {
  return at::empty({tensor.size(3)}, tensor.options().dtype(dtype))
      .expand({tensor.size(0), heads, tensor.size(2), tensor.size(3)});
}

bool has_gaps(const at::Tensor& tensor) { return tensor.size(3) > 1 && tensor.stride(3) != 1; }

std::vector<Obstacle> find_obstacles(const ScaledAttention& attention, const MaskParts& parts) {
  std::vector<Obstacle> all;
  if (attention.dropout != 0) {
    all.push_back({"attention_dropout", [](ScaledAttention& each) { each.dropout = 0; }});
  }
  if (attention.mask) {
    all.push_back({in_words(parts.all), [](ScaledAttention& each) { each.mask.reset(); }});
  }
  if (attention.mask && attention.mask->requires_grad()) {
    all.push_back({"the gradient of " + in_words(parts.with_gradient), [](ScaledAttention& each) {
                     if (each.mask) each.mask = each.mask->detach();
                   }});
  }
  if (has_gaps(attention.query) || has_gaps(attention.key) || has_gaps(attention.value)) {
    all.push_back({"heads whose elements are not contiguous", [](ScaledAttention& each) {
                     for (at::Tensor* tensor : {&each.query, &each.key, &each.value}) {
                       *tensor = like(*tensor, tensor->size(1), tensor->scalar_type());
                     }
                   }});
  }
  if (attention.grouped) {
    all.push_back({"fewer heads of keys than of queries", [](ScaledAttention& each) {
                     const std::int64_t heads = each.query.size(1);
                     each.key = like(each.key, heads, each.key.scalar_type());
                     each.value = like(each.value, heads, each.value.scalar_type());
                     each.grouped = false;
                   }});
  }
  if (attention.key.size(3) != attention.value.size(3)) {
    all.push_back(
        {"values of another size than keys", [](ScaledAttention& each) { each.value = each.key; }});
  }
  if (!ops::has_flash_alone(attention.query) && attention.query.element_size() > 2) {
    const std::string dtype(dtype_name(attention.query.scalar_type()));
    all.push_back({dtype, [](ScaledAttention& each) {
                     for (at::Tensor* tensor : {&each.query, &each.key, &each.value}) {
                       *tensor = like(*tensor, tensor->size(1), at::kBFloat16);
                     }
                   }});
  }
  return all;
}

int speed_without(ScaledAttention attention, const std::vector<Obstacle>& obstacles) {
  for (const Obstacle& each : obstacles) each.remove(attention);
  return get_speed(get_kernel(attention));
}

// Returns the smallest set of obstacles without which there is a faster kernel; empty if none
// helps.
std::vector<Obstacle> find_culprits(const ScaledAttention& attention, const MaskParts& parts,
                                    int speed) {
  std::vector<Obstacle> culprits = find_obstacles(attention, parts);
  const int best = speed_without(attention, culprits);
  if (best <= speed) return {};
  for (std::size_t i = 0; i < culprits.size();) {
    std::vector<Obstacle> others = culprits;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    if (speed_without(attention, others) < best) {
      ++i;
    } else {
      culprits = std::move(others);
    }
  }
  return culprits;
}

std::string get_reason(const ScaledAttention& attention, const MaskParts& parts, int speed) {
  std::vector<std::string> reasons = kernels_switched_off(attention.query);
  std::vector<std::string_view> names;
  const std::vector<Obstacle> culprits = find_culprits(attention, parts, speed);
  for (const Obstacle& each : culprits) names.push_back(each.name);
  if (!names.empty()) {
    reasons.push_back("no faster one takes " + in_words(names));
  } else if (reasons.empty()) {
    reasons.push_back(
        fmt::format("LibTorch does not have a faster one for query {} and key {} "
                    "in {}",
                    c10::str(attention.query.sizes()), c10::str(attention.key.sizes()),
                    dtype_name(attention.query.scalar_type())));
  }
  return fmt::format("{}", fmt::join(reasons, "; "));
}

}  // namespace

MaskParts mask_parts(const MaskSources& sources) {
  MaskParts parts;
  if (sources.has_mask) parts.all.push_back("the mask");
  const auto add = [&](std::string_view name, const std::optional<at::Tensor>& tensor) {
    parts.all.push_back(name);
    if (tensor && tensor->requires_grad()) parts.with_gradient.push_back(name);
  };
  if (sources.bias) add("the bias", sources.bias);
  if (sources.has_sink) {
    add(sources.offset ? "softmax_offset" : "the softmax's sink", sources.offset);
  }
  return parts;
}

bool is_flash(const ScaledAttention& attention) {
  return get_kernel(attention) == SDPBackend::flash_attention;
}

void check_kernel_is_left(const ScaledAttention& attention,
                          const AllowedAttentionKernels& kernels) {
  if (!kernels.restricted() || get_kernel(attention) != SDPBackend::error) return;
  raise<UsageError>(
      "no attention kernel is left that takes query {} and key {}{}{}: others are switched off by "
      "NVTE_FLASH_ATTN, NVTE_FUSED_ATTN, NVTE_UNFUSED_ATTN, NVTE_ALLOW_NONDETERMINISTIC_ALGO or "
      "torch.backends.cuda; {} allows the one that takes everything",
      c10::str(attention.query.sizes()), c10::str(attention.key.sizes()),
      attention.mask ? " with a mask" : "", attention.dropout != 0 ? " with dropout" : "",
      setting_for_math());
}

ops::AttentionChoice choose_kernel(const ScaledAttention& attention, const MaskParts& parts) {
  const SDPBackend kernel = get_kernel(attention);
  const int speed = get_speed(kernel);
  return {.kernel = kernel_name(kernel),
          .reason = speed < get_speed(SDPBackend::flash_attention)
                        ? get_reason(attention, parts, speed)
                        : std::string(),
          .computed_in = attention.query.scalar_type()};
}

}  // namespace telens
