// Overlap of tensor-parallel GEMMs with the communication of their operands or results: Transformer
// Engine's Userbuffers. Messages use the layers' groups (collectives.h); no memory is reserved for
// them.
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
  ring_exchange,  // rows travel in a ring while other rows are multiplied
  pipeline,       // some rows are scattered while others are multiplied
  bulk,           // a GEMM runs during an independent collective
  external,       // like bulk, started before another GEMM's ring
};
std::string_view get_name(OverlapMethod method);

// The settings of a GEMM.
struct OverlapSettings {
  OverlapMethod method = OverlapMethod::bulk;
  bool is_reduce_scatter = false;  // else all-gather
  std::int64_t num_splits = 4;     // of a rank's rows (pipeline)

  // Parameters of Transformer Engine's kernels, without effect here.
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

// Settings by GEMM name <ub_name>_<gemm>, such as "qkv_fprop".
using OverlapsByGemm = std::map<std::string, OverlapSettings, std::less<>>;

struct Userbuffers {
  std::int64_t tp_size = 1;
  std::array<std::optional<OverlapsByGemm>, 2> by_precision = {};  // index: is FP8

  // Returns nullptr if this precision has no settings.
  const OverlapSettings* find(std::string_view ub_name, std::string_view gemm, bool fp8) const;
};

// ub_cfgs as written in a script: GEMM, then setting. Switches may be 0 and 1.
using SettingValue = std::variant<bool, std::int64_t, std::string>;
using OverlapConfig = std::map<std::string, std::map<std::string, SettingValue>>;

struct UserbufferArguments {
  std::vector<std::int64_t> shape;  // [sequence * batch, hidden] of every rank
  std::int64_t tp_size = 1;
  std::int64_t world_size = 1;
  struct Precision {
    bool fp8 = false;
    OverlapConfig config;
  };
  std::vector<Precision> precisions;
};

// Resolves all settings and stores them for the process; returns warnings. Throws UsageError if
// settings are already stored, and for invalid names, methods, values and sizes.
TELENS_EXPORT std::vector<std::string> initialize_userbuffers(const UserbufferArguments& arguments);
TELENS_EXPORT void destroy_userbuffers();
// Returns nullptr if not initialized.
TELENS_EXPORT std::shared_ptr<const Userbuffers> userbuffers();

// Returns true for "qkv", "proj", "fc1" and "fc2".
bool is_ub_name(std::string_view name);

}  // namespace telens
