// The kernels of LibTorch's scaled_dot_product_attention: those that Transformer Engine's
// environment variables allow, the kernel that LibTorch chooses, and the reasons against faster
// ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/ops/attention.h"

namespace telens {

// Disables kernels during its lifetime, in addition to those disabled by torch.backends.cuda,
// according to NVTE_FLASH_ATTN (flash), NVTE_FUSED_ATTN (cuDNN and memory-efficient) and
// NVTE_UNFUSED_ATTN (math), 0 or 1, read in each call. Sets torch's process-wide switches, as
// torch.nn.attention.sdpa_kernel does: attention on other threads is also affected, and a
// concurrent sdpa_kernel that ends later restores the state that it found. Changes nothing unless a
// variable is 0.
class AllowedAttentionKernels {
 public:
  // NVTE_ALLOW_NONDETERMINISTIC_ALGO=0 allows only math on devices other than the CPU, whose
  // kernels are all deterministic. Throws UsageError if no kernel is left, or if a variable is not
  // 0 or 1.
  explicit AllowedAttentionKernels(const at::Tensor& query);
  ~AllowedAttentionKernels();
  AllowedAttentionKernels(const AllowedAttentionKernels&) = delete;
  AllowedAttentionKernels& operator=(const AllowedAttentionKernels&) = delete;

  bool restricted() const { return before_.has_value(); }

 private:
  struct Switches {
    bool flash, cudnn, efficient, math;
  };
  static Switches current();
  static void set(const Switches& switches);

  std::unique_lock<std::mutex> lock_;
  std::optional<Switches> before_;
};

// Returns sentences such as "NVTE_FLASH_ATTN=0 switches flash attention off" for the disabled fast
// kernels of query's device.
std::vector<std::string> kernels_switched_off(const at::Tensor& query);

// Returns the setting that re-enables the math backend: the environment variable or torch's flag,
// whichever disabled it.
std::string_view setting_for_math();

// ---- the kernel that LibTorch chooses

// Arguments of LibTorch's scaled_dot_product_attention.
struct ScaledAttention {
  at::Tensor query;                     // [batch, heads, seq_q, size]
  at::Tensor key;                       // [batch, groups, seq_kv, size]
  at::Tensor value;                     // [batch, groups, seq_kv, value size]
  std::optional<at::Tensor> mask = {};  // boolean or additive
  double dropout = 0;
  bool is_causal = false;
  double scale = 1;
  bool grouped = false;
};

// The parts of a mask in the user's terms, such as {"the mask", "the bias"}, and those that require
// a gradient.
struct MaskParts {
  std::vector<std::string_view> all = {};
  std::vector<std::string_view> with_gradient = {};
};

// The tensors that make up a mask.
struct MaskSources {
  bool has_mask = false;
  std::optional<at::Tensor> bias = {};
  bool has_sink = false;
  std::optional<at::Tensor> offset = {};  // of a learned sink
};
MaskParts mask_parts(const MaskSources& sources);

// Returns true if LibTorch would choose flash attention.
bool is_flash(const ScaledAttention& attention);

// Throws UsageError if no enabled kernel supports the attention: LibTorch's error does not name the
// variable.
void check_kernel_is_left(const ScaledAttention& attention, const AllowedAttentionKernels& kernels);

// Queries LibTorch's choice without running a kernel. If it is not one of the fastest kernels,
// queries again without the possible obstacles.
ops::AttentionChoice choose_kernel(const ScaledAttention& attention, const MaskParts& parts);

}  // namespace telens
