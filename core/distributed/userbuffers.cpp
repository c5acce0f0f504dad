#include "core/distributed/userbuffers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <ranges>
#include <span>
#include <utility>

namespace telens {
namespace {

// A GEMM of a Transformer layer and its default overlap.
struct OverlappingGemm {
  std::string_view name;
  OverlapMethod method;
  bool reduce_scatters;
};
constexpr std::array kGemms{
    OverlappingGemm{"qkv_fprop", OverlapMethod::ring_exchange, false},
    OverlappingGemm{"fc1_fprop", OverlapMethod::ring_exchange, false},
    OverlappingGemm{"proj_dgrad", OverlapMethod::ring_exchange, false},
    OverlappingGemm{"fc2_dgrad", OverlapMethod::ring_exchange, false},
    OverlappingGemm{"proj_fprop", OverlapMethod::pipeline, true},
    OverlappingGemm{"fc2_fprop", OverlapMethod::pipeline, true},
    OverlappingGemm{"qkv_dgrad", OverlapMethod::bulk, false},
    OverlappingGemm{"fc1_dgrad", OverlapMethod::bulk, false},
    OverlappingGemm{"qkv_wgrad", OverlapMethod::bulk, true},
    OverlappingGemm{"fc1_wgrad", OverlapMethod::bulk, true},
    OverlappingGemm{"proj_wgrad", OverlapMethod::external, false},
    OverlappingGemm{"fc2_wgrad", OverlapMethod::external, false},
};
constexpr std::array<std::string_view, 4> kUbNames{"qkv", "proj", "fc1", "fc2"};

// Returns true for a dgrad that may scatter its sum instead of gathering wgrad's operand.
bool may_reduce_scatter(const OverlappingGemm& gemm) {
  return gemm.method == OverlapMethod::bulk && !gemm.reduce_scatters;
}

std::vector<OverlapMethod> get_methods(const OverlappingGemm& gemm) {
  if (may_reduce_scatter(gemm)) {
    return {OverlapMethod::bulk, OverlapMethod::ring_exchange, OverlapMethod::pipeline};
  }
  if (gemm.method == OverlapMethod::pipeline) {
    return {OverlapMethod::pipeline, OverlapMethod::ring_exchange};
  }
  return {gemm.method};
}

auto get_names(std::span<const OverlapMethod> methods) {
  return methods | std::views::transform([](OverlapMethod each) { return get_name(each); });
}

const OverlappingGemm& get_gemm(const std::string& name) {
  const auto found = std::ranges::find(kGemms, name, &OverlappingGemm::name);
  if (found == kGemms.end()) {
    raise<UsageError>("initialize_ub: ub_cfgs has '{}'; expected names of GEMMs: {}", name,
                      fmt::join(kGemms | std::views::transform(&OverlappingGemm::name), ", "));
  }
  return *found;
}

// Reads the settings of a GEMM by name.
class Reader {
 public:
  Reader(const OverlappingGemm& gemm, const std::map<std::string, SettingValue>& given)
      : gemm_(gemm), given_(given) {}

  OverlapMethod method() {
    const SettingValue* value = find("method");
    if (value == nullptr) return gemm_.method;
    const auto* text = std::get_if<std::string>(value);
    const std::vector<OverlapMethod> allowed = get_methods(gemm_);
    const auto found = std::ranges::find_if(
        allowed, [&](OverlapMethod each) { return text != nullptr && get_name(each) == *text; });
    if (found == allowed.end()) {
      raise<UsageError>("initialize_ub: ub_cfgs['{}']['method'] is {}; {}, whose methods are: {}",
                        gemm_.name, shown(*value),
                        gemm_.reduce_scatters ? "this GEMM reduce-scatters"
                        : may_reduce_scatter(gemm_)
                            ? "this GEMM overlaps with a gather, or reduce-scatters"
                            : "the operand of this GEMM is gathered",
                        fmt::join(get_names(allowed), ", "));
    }
    return *found;
  }

  void read(const char* name, bool& setting) {
    const SettingValue* value = find(name);
    if (value == nullptr) return;
    if (const auto* flag = std::get_if<bool>(value)) {
      setting = *flag;
    } else if (const auto* number = std::get_if<std::int64_t>(value);
               number != nullptr && (*number == 0 || *number == 1)) {
      setting = *number == 1;
    } else {
      refuse(name, *value, "True or False");
    }
  }

  void read_count(const char* name, std::int64_t& setting) {
    const SettingValue* value = find(name);
    if (value == nullptr) return;
    const auto* number = std::get_if<std::int64_t>(value);
    if (number == nullptr || *number < 0) refuse(name, *value, "a whole number from 0 on");
    setting = *number;
  }

  void read_priority(const char* name, std::optional<std::int64_t>& setting) {
    const SettingValue* value = find(name);
    if (value == nullptr) return;
    const auto* number = std::get_if<std::int64_t>(value);
    if (number == nullptr) refuse(name, *value, "a whole number");
    setting = *number;
  }

  [[noreturn]] void refuse(const char* name, const SettingValue& value,
                           const std::string& expected) const {
    raise<UsageError>("initialize_ub: ub_cfgs['{}']['{}'] is {}; expected {}", gemm_.name, name,
                      shown(value), expected);
  }

  // Throws for a setting that no call above has read.
  void check_all_known() const {
    for (const auto& [name, value] : given_) {
      if (std::ranges::find(known_, name) != known_.end()) continue;
      raise<UsageError>("initialize_ub: ub_cfgs['{}'] has '{}'; expected some of {}", gemm_.name,
                        name, fmt::join(known_, ", "));
    }
  }

 private:
  static std::string shown(const SettingValue& value) {
    if (const auto* text = std::get_if<std::string>(&value)) return fmt::format("'{}'", *text);
    if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "True" : "False";
    return fmt::format("{}", std::get<std::int64_t>(value));
  }

  const SettingValue* find(const char* name) {
    known_.emplace_back(name);
    const auto found = given_.find(name);
    return found == given_.end() ? nullptr : &found->second;
  }

  const OverlappingGemm& gemm_;
  const std::map<std::string, SettingValue>& given_;
  std::vector<std::string> known_;
};

OverlapSettings get_defaults(const OverlappingGemm& gemm, OverlapMethod method,
                             std::int64_t tp_size) {
  const bool ring = method == OverlapMethod::ring_exchange;
  const bool turned = may_reduce_scatter(gemm) && method != OverlapMethod::bulk;
  const bool reduce_scatters = gemm.reduce_scatters || turned;
  return {.method = method,
          .is_reduce_scatter = reduce_scatters,
          .num_splits = ring ? tp_size : 4,
          .num_sm = ring ? 1 : 16,
          .cga_size = ring ? 1 : 2,
          .set_sm_margin = !ring,
          .fp8_buf = !reduce_scatters};
}

void check_atomic(const OverlappingGemm& gemm, bool fp8, OverlapSettings& settings,
                  std::vector<std::string>& warnings) {
  if (!settings.atomic_gemm) return;
  if (!fp8) {
    raise<UsageError>(
        "initialize_ub: ub_cfgs['{}']['atomic_gemm'] is True, which is for FP8 GEMMs; remove it "
        "from the settings of UserBufferQuantizationMode.NONE",
        gemm.name);
  }
  const bool cuts =
      settings.method == OverlapMethod::ring_exchange || settings.method == OverlapMethod::pipeline;
  warnings.push_back(
      fmt::format("initialize_ub: atomic_gemm of {} has no effect: {}", gemm.name,
                  cuts ? "each part is a separate product" : "its method does not cut the GEMM"));
  settings.atomic_gemm = cuts;
}

OverlapSettings read_settings(const OverlappingGemm& gemm,
                              const UserbufferArguments::Precision& precision, std::int64_t tp_size,
                              std::vector<std::string>& warnings) {
  static const std::map<std::string, SettingValue> nothing;
  const auto written = precision.config.find(std::string(gemm.name));
  Reader reader(gemm, written == precision.config.end() ? nothing : written->second);
  OverlapSettings settings = get_defaults(gemm, reader.method(), tp_size);
  bool reduce_scatters = settings.is_reduce_scatter;
  reader.read("is_reduce_scatter", reduce_scatters);
  if (reduce_scatters != settings.is_reduce_scatter) {
    reader.refuse(
        "is_reduce_scatter", reduce_scatters,
        fmt::format("{}, as this GEMM's method is {}",
                    settings.is_reduce_scatter ? "True" : "False", get_name(settings.method)));
  }
  reader.read_count("num_sm", settings.num_sm);
  reader.read_count("cga_size", settings.cga_size);
  reader.read("set_sm_margin", settings.set_sm_margin);
  reader.read_count("num_splits", settings.num_splits);
  if (settings.num_splits == 0) reader.refuse("num_splits", std::int64_t{0}, "at least 1");
  reader.read("aggregate", settings.aggregate);
  reader.read("atomic_gemm", settings.atomic_gemm);
  reader.read("use_ce", settings.use_ce);
  bool fp8_buf = settings.fp8_buf;
  reader.read("fp8_buf", fp8_buf);
  reader.read_priority("comm_priority", settings.comm_priority);
  reader.read_priority("gemm_priority", settings.gemm_priority);
  reader.read("pipeline_rs_overlap_first_gemm", settings.pipeline_rs_overlap_first_gemm);
  reader.check_all_known();
  if (fp8_buf && settings.is_reduce_scatter && precision.fp8) {
    warnings.push_back(
        fmt::format("initialize_ub: fp8_buf of {} has no effect: parts of a sum are sent in the "
                    "output's dtype, never as FP8 codes",
                    gemm.name));
  }
  check_atomic(gemm, precision.fp8, settings, warnings);
  return settings;
}

// Transformer Engine's atomic rings reverse the order of rows, and their partners restore it: a
// script that sets only one of a pair does not run there.
void check_atomic_pairs(const OverlapsByGemm& overlaps) {
  const auto is_atomic_ring = [&](const char* name) {
    const OverlapSettings& settings = overlaps.find(name)->second;
    return settings.atomic_gemm && settings.method == OverlapMethod::ring_exchange;
  };
  for (const auto& [gather, scatter] :
       {std::pair("qkv_fprop", "proj_fprop"), std::pair("fc1_fprop", "fc2_fprop")}) {
    if (is_atomic_ring(gather) == is_atomic_ring(scatter)) continue;
    raise<UsageError>(
        "initialize_ub: only one of {} and {} has atomic_gemm with ring_exchange; set both, or "
        "neither",
        gather, scatter);
  }
}

void check_turned_dgrads(const OverlapConfig& config, const OverlapsByGemm& overlaps) {
  for (const std::string layer : {"qkv", "fc1"}) {
    const OverlapSettings& dgrad = overlaps.at(layer + "_dgrad");
    if (dgrad.method == OverlapMethod::bulk || !config.contains(layer + "_wgrad")) continue;
    raise<UsageError>(
        "initialize_ub: ub_cfgs has '{0}_wgrad' and a '{0}_dgrad' with method {1}, which "
        "already sends the sum that would overlap with wgrad; remove '{0}_wgrad'",
        layer, get_name(dgrad.method));
  }
}

// Resolves the settings for a precision; appends to `warnings`.
OverlapsByGemm resolve_settings(const UserbufferArguments::Precision& precision,
                                std::int64_t tp_size, std::vector<std::string>& warnings) {
  for (const auto& [name, settings] : precision.config) get_gemm(name);
  OverlapsByGemm overlaps;
  for (const OverlappingGemm& gemm : kGemms) {
    overlaps.emplace(gemm.name, read_settings(gemm, precision, tp_size, warnings));
  }
  check_turned_dgrads(precision.config, overlaps);
  check_atomic_pairs(overlaps);
  return overlaps;
}

struct Kept {
  std::mutex mutex;
  std::shared_ptr<const Userbuffers> now;
};

Kept& kept() {
  static auto& instance = *new Kept;  // leaked: threads may run while the process exits
  return instance;
}

void check_sizes(const UserbufferArguments& arguments) {
  const std::int64_t ranks = arguments.tp_size;
  if (ranks < 1 || arguments.world_size % ranks != 0) {
    raise<UsageError>(
        "initialize_ub: tp_size is {}, which does not divide the {} ranks of torch.distributed; "
        "set it to the size of a tensor-parallel group",
        ranks, arguments.world_size);
  }
  const std::vector<std::int64_t>& shape = arguments.shape;
  const auto positive = [](std::int64_t size) { return size > 0; };
  if (shape.size() != 2 || !std::ranges::all_of(shape, positive) || shape[0] % ranks != 0) {
    raise<UsageError>(
        "initialize_ub: shape is [{}]; expected [sequence length * batch size, hidden size] "
        "over all ranks, the first divisible by tp_size={}",
        fmt::join(shape, ", "), ranks);
  }
}

}  // namespace

std::string_view get_name(OverlapMethod method) {
  switch (method) {
    case OverlapMethod::ring_exchange:
      return "ring_exchange";
    case OverlapMethod::pipeline:
      return "pipeline";
    case OverlapMethod::bulk:
      return "bulk";
    case OverlapMethod::external:
      break;
  }
  return "external";
}

bool is_ub_name(std::string_view name) {
  return std::ranges::find(kUbNames, name) != kUbNames.end();
}

const OverlapSettings* Userbuffers::find(std::string_view ub_name, std::string_view gemm,
                                         bool fp8) const {
  const std::optional<OverlapsByGemm>& overlaps = by_precision[fp8];
  if (!overlaps) return nullptr;
  const auto found = overlaps->find(fmt::format("{}_{}", ub_name, gemm));
  return found == overlaps->end() ? nullptr : &found->second;
}

std::vector<std::string> initialize_userbuffers(const UserbufferArguments& arguments) {
  const std::lock_guard lock(kept().mutex);
  if (kept().now) {
    raise<UsageError>(
        "initialize_ub: Userbuffers are initialized already; call destroy_ub first to set others");
  }
  check_sizes(arguments);
  auto made = std::make_shared<Userbuffers>();
  made->tp_size = arguments.tp_size;
  std::vector<std::string> warnings;
  for (const UserbufferArguments::Precision& each : arguments.precisions) {
    if (made->by_precision[each.fp8]) {
      raise<UsageError>(
          "initialize_ub: quantization_modes names {} twice; give each precision once",
          each.fp8 ? "FP8" : "NONE");
    }
    made->by_precision[each.fp8] = resolve_settings(each, arguments.tp_size, warnings);
  }
  kept().now = std::move(made);
  return warnings;
}

void destroy_userbuffers() {
  const std::lock_guard lock(kept().mutex);
  kept().now = nullptr;
}

std::shared_ptr<const Userbuffers> userbuffers() {
  const std::lock_guard lock(kept().mutex);
  return kept().now;
}

}  // namespace telens
