#include "core/kernels/cuda/gemm/cublaslt.h"

#include <ATen/ops/empty.h>
#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/base/error.h"

namespace telens::cuda {
namespace {

cudaDataType_t get_type(FormatId format) {
  switch (format) {
    case FormatId::e4m3:
      return CUDA_R_8F_E4M3;
    case FormatId::e5m2:
      return CUDA_R_8F_E5M2;
    case FormatId::e2m1:
      return CUDA_R_4F_E2M1;
    case FormatId::bf16:
      return CUDA_R_16BF;
    case FormatId::fp16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

cublasLtMatmulMatrixScale_t get_scale_mode(ScalingMode mode) {
  const ScalingScheme scales = scheme(mode);
  if (scales.scale_format == FormatId::e8m0) return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
  if (scales.scale_format == FormatId::e4m3) return CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
  if (!scales.has_128_blocks()) return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  return scales.block_height == 1 ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
                                  : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
}

void check(cublasStatus_t status, std::string_view call, const LtGemm& gemm) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  raise("gemm {}: {} returned {}: {}", describe(gemm), call, cublasLtGetStatusName(status),
        cublasLtGetStatusString(status));
}

// Owners of cuBLASLt objects.
template <auto destroy>
struct Destroy {
  template <typename T>
  void operator()(T* object) const {
    destroy(object);
  }
};
using Handle = std::unique_ptr<std::remove_pointer_t<cublasLtHandle_t>, Destroy<&cublasLtDestroy>>;
using Operation = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>,
                                  Destroy<&cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>,
                               Destroy<&cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                                   Destroy<&cublasLtMatmulPreferenceDestroy>>;

template <typename T>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t attribute, const T& value,
         const LtGemm& gemm) {
  check(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof(value)),
        "cublasLtMatmulDescSetAttribute", gemm);
}

void set_scale(const Operation& operation, const LtOperand& operand,
               cublasLtMatmulDescAttributes_t pointer, cublasLtMatmulDescAttributes_t mode,
               const LtGemm& gemm) {
  if (operand.scales == nullptr) return;
  set(operation, pointer, operand.scales, gemm);
  set(operation, mode, static_cast<std::int32_t>(get_scale_mode(operand.scaling)), gemm);
}

// Swaps A and B; see the header.
Operation make_operation(const LtGemm& gemm) {
  cublasLtMatmulDesc_t raw = nullptr;
  const auto compute = gemm.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  check(cublasLtMatmulDescCreate(&raw, compute, CUDA_R_32F), "cublasLtMatmulDescCreate", gemm);
  Operation operation(raw);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, gemm.b.transposed ? CUBLAS_OP_N : CUBLAS_OP_T, gemm);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, gemm.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N, gemm);
  set_scale(operation, gemm.b, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
            CUBLASLT_MATMUL_DESC_A_SCALE_MODE, gemm);
  set_scale(operation, gemm.a, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
            CUBLASLT_MATMUL_DESC_B_SCALE_MODE, gemm);
  if (gemm.alpha != nullptr) {
    set(operation, CUBLASLT_MATMUL_DESC_POINTER_MODE,
        static_cast<std::int32_t>(CUBLASLT_POINTER_MODE_DEVICE), gemm);
  }
  set(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(gemm.fast_accumulation),
      gemm);
  if (gemm.bias != nullptr) {
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS, gemm);
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, gemm.bias, gemm);
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
        static_cast<std::int32_t>(get_type(gemm.bias_format)), gemm);
  }
  return operation;
}

// A layout of cuBLASLt's rows and columns.
Layout make_layout(FormatId format, std::int64_t rows, std::int64_t columns, std::int64_t leading,
                   const LtGemm& gemm) {
  cublasLtMatrixLayout_t raw = nullptr;
  check(cublasLtMatrixLayoutCreate(&raw, get_type(format), static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), leading),
        "cublasLtMatrixLayoutCreate", gemm);
  return Layout(raw);
}

// The layout of an operand [rows, K].
Layout make_layout(const LtOperand& operand, std::int64_t rows, const LtGemm& gemm) {
  return operand.transposed ? make_layout(operand.format, rows, gemm.k, operand.leading, gemm)
                            : make_layout(operand.format, gemm.k, rows, operand.leading, gemm);
}

struct Choice {
  std::optional<cublasLtMatmulAlgo_t> algorithm;  // nullopt if cuBLASLt cannot run the product
  std::string description;
};

// Handles and chosen algorithms for all devices. Thread-safe: several threads may enqueue products.
class Planner {
 public:
  static Planner& instance() {
    // Never destroyed: at exit the CUDA runtime may already be gone.
    static auto* const planner = new Planner;
    return *planner;
  }

  cublasLtHandle_t handle(int device, const LtGemm& gemm) {
    const std::lock_guard lock(mutex_);
    Handle& handle = handles_[device];
    if (!handle) {
      cublasLtHandle_t raw = nullptr;
      check(cublasLtCreate(&raw), "cublasLtCreate", gemm);
      handle.reset(raw);
    }
    return handle.get();
  }

  // Calls ask() to choose an algorithm if the key is new. Choices are never changed or removed.
  template <typename Ask>
  const Choice& choice(const LtKey& key, const Ask& ask) {
    const std::lock_guard lock(mutex_);
    if (const auto known = choices_.find(key); known != choices_.end()) return known->second;
    return choices_.emplace(key, ask()).first->second;
  }

  std::vector<std::string> describe_choices() {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> lines;
    for (const auto& [key, choice] : choices_) lines.push_back(choice.description);
    std::sort(lines.begin(), lines.end());
    return lines;
  }

 private:
  std::mutex mutex_;
  std::map<int, Handle> handles_;
  std::map<LtKey, Choice> choices_;
};

int get_attribute(const cublasLtMatmulAlgo_t& algorithm,
                  cublasLtMatmulAlgoConfigAttributes_t name) {
  std::int32_t value = -1;
  std::size_t written = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algorithm, name, &value, sizeof(value), &written);
  return value;
}

struct Layouts {
  Layout first;   // B
  Layout second;  // A
  Layout out;     // D as [N, M]

  explicit Layouts(const LtGemm& gemm)
      : first(make_layout(gemm.b, gemm.n, gemm)),
        second(make_layout(gemm.a, gemm.m, gemm)),
        out(make_layout(gemm.out_format, gemm.n, gemm.m, gemm.out_leading, gemm)) {}
};

Choice ask_heuristic(cublasLtHandle_t handle, const LtGemm& gemm, const Operation& operation,
                     const Layouts& layouts) {
  cublasLtMatmulPreference_t raw = nullptr;
  check(cublasLtMatmulPreferenceCreate(&raw), "cublasLtMatmulPreferenceCreate", gemm);
  const Preference preference(raw);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute", gemm);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kLtWorkspaceBytes});
  // Partial sums in the output's format would be rounded more than once.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, get_alignment(gemm.b.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, get_alignment(gemm.a.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, get_alignment(gemm.out));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, get_alignment(gemm.out));

  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, operation.get(), layouts.first.get(), layouts.second.get(), layouts.out.get(),
      layouts.out.get(), preference.get(), 1, &result, &found);
  // cuBLASLt returns one of these statuses for an unsupported product.
  const bool refused = status == CUBLAS_STATUS_NOT_SUPPORTED ||
                       status == CUBLAS_STATUS_INVALID_VALUE ||
                       status == CUBLAS_STATUS_ARCH_MISMATCH;
  if (!refused) check(status, "cublasLtMatmulAlgoGetHeuristic", gemm);
  // The result's other fields are valid only if its state is success.
  const cublasStatus_t state = refused || found == 0 ? status : result.state;
  if (refused || found == 0 || state != CUBLAS_STATUS_SUCCESS) {
    return {{}, fmt::format("{}: no algorithm ({})", describe(gemm), cublasLtGetStatusName(state))};
  }
  return {result.algo,
          fmt::format("{}: algorithm {}, tile {}, stages {}, split-K {}, workspace {} bytes",
                      describe(gemm), get_attribute(result.algo, CUBLASLT_ALGO_CONFIG_ID),
                      get_attribute(result.algo, CUBLASLT_ALGO_CONFIG_TILE_ID),
                      get_attribute(result.algo, CUBLASLT_ALGO_CONFIG_STAGES_ID),
                      get_attribute(result.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
                      result.workspaceSize)};
}

// Returns true if dimension `inner` is contiguous in memory and lines do not overlap.
bool is_line_by_line(const at::Tensor& matrix, int inner) {
  const int outer = 1 - inner;
  return (matrix.stride(inner) == 1 || matrix.size(inner) == 1) &&
         (matrix.stride(outer) >= matrix.size(inner) || matrix.size(outer) == 1);
}

std::int64_t get_leading(const at::Tensor& matrix, int inner) {
  return std::max(matrix.stride(1 - inner), matrix.size(inner));
}

at::Tensor workspace_for(const LtGemm& gemm, const at::Device& device) {
  try {
    return at::empty({static_cast<std::int64_t>(kLtWorkspaceBytes)},
                     at::TensorOptions(device).dtype(at::kByte));
  } catch (const c10::OutOfMemoryError& error) {
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "gemm ", describe(gemm), ": no room for its ",
        kLtWorkspaceBytes >> 20,
        " MiB of workspace; use smaller batches or free memory: ", error.what_without_backtrace());
  }
}

}  // namespace

std::vector<std::string> lt_algorithms() { return Planner::instance().describe_choices(); }

bool run_lt_gemm(const LtGemm& gemm, int device, void* workspace, cudaStream_t stream) {
  Planner& planner = Planner::instance();
  const cublasLtHandle_t handle = planner.handle(device, gemm);
  const Operation operation = make_operation(gemm);
  const Layouts layouts(gemm);
  const Choice& choice = planner.choice(
      make_key(gemm, device), [&] { return ask_heuristic(handle, gemm, operation, layouts); });
  if (!choice.algorithm) return false;
  const float one = 1.0F;
  const float kept = gemm.accumulate ? 1.0F : 0.0F;
  const void* const alpha = gemm.alpha != nullptr ? gemm.alpha : &one;
  const void* const beta = gemm.alpha != nullptr ? gemm.beta : &kept;
  check(
      cublasLtMatmul(handle, operation.get(), alpha, gemm.b.data, layouts.first.get(), gemm.a.data,
                     layouts.second.get(), beta, gemm.out, layouts.out.get(), gemm.out,
                     layouts.out.get(), &*choice.algorithm, workspace, kLtWorkspaceBytes, stream),
      "cublasLtMatmul", gemm);
  return true;
}

FormatId get_format(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return FormatId::bf16;
  return dtype == at::kHalf ? FormatId::fp16 : FormatId::fp32;
}

LtOperand get_operand(at::Tensor& matrix, FormatId format) {
  if (is_line_by_line(matrix, 1)) return {matrix.const_data_ptr(), format, get_leading(matrix, 1)};
  if (is_line_by_line(matrix, 0)) {
    return {matrix.const_data_ptr(), format, get_leading(matrix, 0), true};
  }
  matrix = matrix.contiguous();
  return {matrix.const_data_ptr(), format, matrix.size(1)};
}

at::Tensor dense_bias(const at::Tensor& bias) {
  constexpr std::uintptr_t kAlignment = 16;
  if (!bias.defined()) return bias;
  const at::Tensor dense = bias.contiguous();
  return is_aligned(dense.const_data_ptr(), kAlignment) ? dense : dense.clone();
}

bool try_product(const DeviceScope& scope, const LtGemm& gemm, const at::Device& device) {
  const at::Tensor workspace = workspace_for(gemm, device);
  return run_lt_gemm(gemm, device.index(), workspace.mutable_data_ptr(), scope.context().stream);
}

void run_product(const DeviceScope& scope, const LtGemm& gemm, const at::Device& device) {
  if (try_product(scope, gemm, device)) return;
  raise<UsageError>(
      "gemm {}: cuBLASLt has no algorithm for this product on this card; pass contiguous "
      "operands aligned to 16 bytes",
      describe(gemm));
}

at::Tensor bf16_product(const DeviceScope& scope, at::Tensor a, at::Tensor b) {
  const at::Tensor sums = at::empty({a.size(0), b.size(0)}, a.options().dtype(at::kFloat));
  run_product(scope,
              {.m = a.size(0),
               .n = b.size(0),
               .k = a.size(1),
               .a = get_operand(a, FormatId::bf16),
               .b = get_operand(b, FormatId::bf16),
               .out = sums.mutable_data_ptr(),
               .out_format = FormatId::fp32,
               .out_leading = b.size(0)},
              sums.device());
  return sums;
}

}  // namespace telens::cuda
