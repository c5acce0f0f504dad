#include "core/kernels/cuda/cublaslt.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/base/error.h"

namespace telens::cuda {
namespace {

std::string_view name_of_type(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_8F_E4M3:
      return "E4M3";
    case CUDA_R_8F_E5M2:
      return "E5M2";
    case CUDA_R_16BF:
      return "BF16";
    case CUDA_R_16F:
      return "FP16";
    case CUDA_R_32F:
      return "FP32";
    default:
      return "an unknown type";
  }
}

std::string_view name_of_scale(const LtScale& scale) {
  if (scale.data == nullptr) return "";
  switch (scale.mode) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F:
      return " under one scale";
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0:
      return " in MXFP8 blocks";
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F:
      return " in 1x128 blocks";
    case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F:
      return " in 128x128 blocks";
    default:
      return " in blocks";
  }
}

void check(cublasStatus_t status, std::string_view call, const LtGemm& gemm) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  raise("gemm {}: {} returned {}: {}", describe(gemm), call, cublasLtGetStatusName(status),
        cublasLtGetStatusString(status));
}

// Owners of cuBLASLt's objects.
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

void set_scale(const Operation& operation, const LtScale& scale,
               cublasLtMatmulDescAttributes_t pointer, cublasLtMatmulDescAttributes_t mode,
               const LtGemm& gemm) {
  if (scale.data == nullptr) return;
  set(operation, pointer, scale.data, gemm);
  set(operation, mode, static_cast<std::int32_t>(scale.mode), gemm);
}

// Exchanges A and B, as the header says.
Operation make_operation(const LtGemm& gemm) {
  cublasLtMatmulDesc_t raw = nullptr;
  check(cublasLtMatmulDescCreate(&raw, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate",
        gemm);
  Operation operation(raw);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T, gemm);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N, gemm);
  set_scale(operation, gemm.b.scale, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
            CUBLASLT_MATMUL_DESC_A_SCALE_MODE, gemm);
  set_scale(operation, gemm.a.scale, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
            CUBLASLT_MATMUL_DESC_B_SCALE_MODE, gemm);
  set(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(gemm.fast_accumulation),
      gemm);
  if (gemm.bias != nullptr) {
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS, gemm);
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, gemm.bias, gemm);
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(gemm.bias_type),
        gemm);
  }
  return operation;
}

Layout make_layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns,
                   const LtGemm& gemm) {
  cublasLtMatrixLayout_t raw = nullptr;
  check(cublasLtMatrixLayoutCreate(&raw, type, static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), rows),
        "cublasLtMatrixLayoutCreate", gemm);
  return Layout(raw);
}

// The largest power of two, at most 256, that divides an address.
std::uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | 256U;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

// What cuBLASLt's choice of an algorithm may depend on.
struct Key {
  int device;
  std::array<std::int64_t, 3> shape;
  std::array<int, 8> kinds;
  std::array<std::uint32_t, 4> alignments;

  auto operator<=>(const Key&) const = default;
};

Key key_of(const LtGemm& gemm, int device) {
  constexpr int kNone = -1;
  const auto kind = [](auto value) { return static_cast<int>(value); };
  const auto scale = [&](const LtScale& s) { return s.data == nullptr ? kNone : kind(s.mode); };
  return {device,
          {gemm.m, gemm.n, gemm.k},
          {kind(gemm.a.type), kind(gemm.b.type), kind(gemm.out_type),
           gemm.bias == nullptr ? kNone : kind(gemm.bias_type), scale(gemm.a.scale),
           scale(gemm.b.scale), kind(gemm.accumulate), kind(gemm.fast_accumulation)},
          {alignment_of(gemm.a.data), alignment_of(gemm.b.data), alignment_of(gemm.out),
           alignment_of(gemm.bias)}};
}

struct Choice {
  cublasLtMatmulAlgo_t algorithm;
  std::size_t workspace;
  std::string description;
};

// Handles and choices of all devices. Products may be enqueued from several threads.
class Planner {
 public:
  static Planner& instance() {
    // Never destroyed: at exit the CUDA runtime may be gone before it.
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

  // Calls ask() for the choice if the key is new. Choices are never changed or removed.
  template <typename Ask>
  const Choice& choice(const Key& key, const Ask& ask) {
    const std::lock_guard lock(mutex_);
    if (const auto known = choices_.find(key); known != choices_.end()) return known->second;
    return choices_.emplace(key, ask()).first->second;
  }

  std::string describe_choices() {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> lines;
    for (const auto& [key, choice] : choices_) lines.push_back(choice.description);
    std::sort(lines.begin(), lines.end());
    return fmt::format("{}", fmt::join(lines, "\n"));
  }

 private:
  std::mutex mutex_;
  std::map<int, Handle> handles_;
  std::map<Key, Choice> choices_;
};

int attribute_of(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t name) {
  std::int32_t value = -1;
  std::size_t written = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algorithm, name, &value, sizeof(value), &written);
  return value;
}

struct Layouts {
  Layout first;   // B as [K, N]
  Layout second;  // A as [K, M]
  Layout out;     // D as [N, M]

  explicit Layouts(const LtGemm& gemm)
      : first(make_layout(gemm.b.type, gemm.k, gemm.n, gemm)),
        second(make_layout(gemm.a.type, gemm.k, gemm.m, gemm)),
        out(make_layout(gemm.out_type, gemm.n, gemm.m, gemm)) {}
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
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(gemm.b.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(gemm.a.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(gemm.out));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(gemm.out));

  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, operation.get(), layouts.first.get(), layouts.second.get(), layouts.out.get(),
      layouts.out.get(), preference.get(), 1, &result, &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0)) {
    raise<UsageError>(
        "gemm {}: cuBLASLt has no algorithm for it on this card ({}); FP8 needs multiples of 16 in "
        "every dimension and addresses that are multiples of 16",
        describe(gemm), cublasLtGetStatusName(status));
  }
  check(status, "cublasLtMatmulAlgoGetHeuristic", gemm);
  return {result.algo, result.workspaceSize,
          fmt::format("{}: algorithm {}, tile {}, stages {}, split-K {}, workspace {} bytes",
                      describe(gemm), attribute_of(result.algo, CUBLASLT_ALGO_CONFIG_ID),
                      attribute_of(result.algo, CUBLASLT_ALGO_CONFIG_TILE_ID),
                      attribute_of(result.algo, CUBLASLT_ALGO_CONFIG_STAGES_ID),
                      attribute_of(result.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
                      result.workspaceSize)};
}

}  // namespace

std::string describe(const LtGemm& gemm) {
  std::string text =
      fmt::format("[M, N, K] = [{}, {}, {}], A {}{}, B {}{} -> {}", gemm.m, gemm.n, gemm.k,
                  name_of_type(gemm.a.type), name_of_scale(gemm.a.scale), name_of_type(gemm.b.type),
                  name_of_scale(gemm.b.scale), name_of_type(gemm.out_type));
  if (gemm.bias != nullptr) text += fmt::format(", bias {}", name_of_type(gemm.bias_type));
  if (gemm.accumulate) text += ", added to the output";
  text += gemm.fast_accumulation ? ", fast accumulation" : ", split accumulator";
  return text;
}

std::string lt_algorithms() { return Planner::instance().describe_choices(); }

void run_lt_gemm(const LtGemm& gemm, int device, void* workspace, cudaStream_t stream) {
  Planner& planner = Planner::instance();
  const cublasLtHandle_t handle = planner.handle(device, gemm);
  const Operation operation = make_operation(gemm);
  const Layouts layouts(gemm);
  const Choice& choice = planner.choice(
      key_of(gemm, device), [&] { return ask_heuristic(handle, gemm, operation, layouts); });
  const float alpha = 1.0F;
  const float beta = gemm.accumulate ? 1.0F : 0.0F;
  check(
      cublasLtMatmul(handle, operation.get(), &alpha, gemm.b.data, layouts.first.get(), gemm.a.data,
                     layouts.second.get(), &beta, gemm.out, layouts.out.get(), gemm.out,
                     layouts.out.get(), &choice.algorithm, workspace, kLtWorkspaceBytes, stream),
      "cublasLtMatmul", gemm);
}

}  // namespace telens::cuda
