// GEMMs of tensor-parallel layers that overlap with what their operands or results travel by:
// Transformer Engine's Userbuffers. Messages go over the layers' own groups (collectives.h),
// and no memory is kept for them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/error.h"

namespace telens {

enum class OverlapMethod : std::uint8_t {
  ring_exchange,  // each rank's rows go round the ring, beside the products of other ranks' rows
  pipeline,       // the sum of some rows is scattered, beside the product of others
  bulk,           // a collective beside a GEMM that does not need it
  external,       // as bulk, begun before the ring of another GEMM
};
std::string_view get_name(OverlapMethod method);

// The settings of one GEMM.
struct OverlapSettings {
  OverlapMethod method = OverlapMethod::bulk;
  bool is_reduce_scatter = false;  // false: all-gather
  std::int64_t num_splits = 4;     // pipeline: the parts of a rank's rows

  // Those steer kernels of Transformer Engine, and change nothing here.
  std::int64_t num_sm = 16;
  std::int64_t cga_size = 2;
  bool set_sm_margin = true;
  bool aggregate = false;
  bool atomic_gemm = false;
  bool use_ce = true;
  bool fp8_buf = false;
  std::optional<std::int64_t> comm_priority = {};  // streams'; default: the device's highest
  std::optional<std::int64_t> gemm_priority = {};  // default: its lowest
  bool pipeline_rs_overlap_first_gemm = false;
};

// By name of GEMM: <ub_name>_<gemm>, such as "qkv_fprop".
using OverlapsByGemm = std::map<std::string, OverlapSettings, std::less<>>;

struct Userbuffers {
  std::int64_t tp_size = 1;
  std::array<std::optional<OverlapsByGemm>, 2> by_precision = {};  // [true]: of FP8 GEMMs

  // nullptr: not set for this precision.
  const OverlapSettings* find(std::string_view ub_name, std::string_view gemm, bool fp8) const;
};

// ub_cfgs as a script writes it: GEMM, then setting. Switches may be 0 and 1.
using SettingValue = std::variant<bool, std::int64_t, std::string>;
using OverlapConfig = std::map<std::string, std::map<std::string, SettingValue>>;

struct UserbufferArguments {
  std::vector<std::int64_t> shape;  // [sequence * batch, hidden] of all ranks
  std::int64_t tp_size = 1;
  std::int64_t world_size = 1;
  struct Precision {
    bool fp8 = false;
    OverlapConfig config;
  };
  std::vector<Precision> precisions;
};

// Settles all settings and keeps them for the process; returns what to warn of. Throws UsageError
// where they are kept already, and for names, methods, values and sizes that do not fit.
TELENS_EXPORT std::vector<std::string> initialize_userbuffers(const UserbufferArguments& arguments);
TELENS_EXPORT void destroy_userbuffers();
// nullptr: not initialized.
TELENS_EXPORT std::shared_ptr<const Userbuffers> userbuffers();

// "qkv", "proj", "fc1" or "fc2".
bool is_ub_name(std::string_view name);

// Settles one precision, from what a script wrote; adds to `warnings` (userbuffer_settings.cpp).
OverlapsByGemm overlap_settings(const UserbufferArguments::Precision& precision,
                                std::int64_t tp_size, std::vector<std::string>& warnings);

}  // namespace telens
