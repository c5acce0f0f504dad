#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "analysis/rules/precision_names.h"
#include "analysis/rules/rules.h"
#include "analysis/rules/scalar_reads.h"

namespace telens::analysis {
namespace {

// The precision of one operand in a state of a GEMM.
struct OperandState {
  TensorName tensor{};
  std::string requested, ran, reason;

  bool is_low() const { return !is_high_precision(ran); }
};

std::vector<OperandState> get_operand_states(const GemmState& state) {
  std::vector<OperandState> operands;
  for (const TensorName tensor : kAllTensors) {
    const std::string name(get_name(tensor));
    if (!is_gemm_input(tensor) || !state.entries.contains(name + " ran")) continue;
    const bool fallback = state.entries.contains(name + " fallback");
    operands.push_back({tensor, state.detail(name + " requested"), state.detail(name + " ran"),
                        state.detail(name + (fallback ? " fallback" : " cause"))});
  }
  return operands;
}

bool is_low(const GemmState& state) {
  return std::ranges::any_of(get_operand_states(state), &OperandState::is_low);
}

// Returns true if a section of the configuration or the recipe requests this precision.
bool is_intended(const OperandState& operand) {
  return operand.reason.find("in section `") != std::string::npos ||
         operand.reason.starts_with("override_linear_precision") ||
         operand.reason.starts_with("backward_override=") ||
         operand.reason.starts_with("the recipe wants it so") ||
         operand.reason.starts_with("not a layer of TELens");
}

Finding gemm_precision_finding(const Facts& facts, const GemmState& state,
                               const OperandState& operand, std::string summary,
                               double confidence) {
  Place place = state.place;
  place.tensor = operand.tensor;
  return {.cause = "gemm_precision",
          .place = place,
          .first = state.iteration,
          .last = facts.last_iteration(),
          .confidence = confidence,
          .summary = std::move(summary),
          .evidence = {{"ledger: ran " + operand.ran, place, state.iteration, 0, operand.reason}}};
}

// Returns GEMMs that ran in high precision although low precision was requested, and GEMMs that
// switched from low to high precision.
std::vector<Finding> find_fallbacks(const Facts& facts) {
  std::vector<Finding> found;
  const GemmState* last = nullptr;
  for (const GemmState& state : facts.gemm_states()) {
    const bool same_gemm = last != nullptr && last->place == state.place;
    for (const OperandState& operand : get_operand_states(state)) {
      if (operand.is_low() || is_intended(operand)) continue;
      const bool is_fallback =
          !is_high_precision(operand.requested) && operand.requested != "unknown";
      const bool changed = same_gemm && is_low(*last);
      if (!is_fallback && !changed) continue;
      found.push_back(gemm_precision_finding(
          facts, state, operand,
          changed ? fmt::format("the GEMM switched from low precision to {}: {}", operand.ran,
                                operand.reason)
                  : fmt::format("{} was requested, but {} ran: {}", operand.requested, operand.ran,
                                operand.reason),
          kProven));
      break;
    }
    last = &state;
  }
  return found;
}

// Returns the number of a layer's block: 12 for "layers.12.fc1", -1 if the name has no number.
int get_block_number(const std::string& name) {
  const auto digit = name.find_first_of("0123456789");
  return digit == std::string::npos ? -1 : std::atoi(name.c_str() + digit);
}

// Returns GEMMs that run in high precision from the start, while at least twice as many of the same
// part run in low precision. Skips the first and the last block if the whole block runs in high
// precision, which is often intended.
std::vector<Finding> find_exceptions(const Facts& facts) {
  struct Part {
    std::vector<const GemmState*> low, high;
  };
  std::map<std::pair<std::string, std::optional<Gemm>>, Part> parts;
  std::map<int, std::set<bool>> precisions_of_block;
  int last_block = -1;
  std::set<std::tuple<int, std::int32_t, std::optional<Gemm>>> seen;
  for (const GemmState& state : facts.gemm_states()) {
    if (!seen.insert({state.place.rank, state.place.layer, state.place.gemm}).second) continue;
    const bool low = is_low(state);
    auto& part = parts[{facts.select_part(state.place.layer), state.place.gemm}];
    (low ? part.low : part.high).push_back(&state);
    const int block = get_block_number(facts.layer_name(state.place.layer));
    precisions_of_block[block].insert(low);
    last_block = std::max(last_block, block);
  }
  std::vector<Finding> found;
  for (const auto& [name, part] : parts) {
    if (part.low.size() < 2 * part.high.size() || part.high.empty()) continue;
    for (const GemmState* state : part.high) {
      const auto operands = get_operand_states(*state);
      if (operands.empty()) continue;
      const OperandState& operand = operands.front();
      if (is_intended(operand)) continue;
      const int block = get_block_number(facts.layer_name(state->place.layer));
      const bool is_uniform_block = precisions_of_block[block].size() == 1;
      if (is_uniform_block && (block == 0 || block == last_block)) continue;
      found.push_back(gemm_precision_finding(
          facts, *state, operand,
          fmt::format("the GEMM runs in {}, while {} layers of its kind run in low precision: {}",
                      operand.ran, part.low.size(), operand.reason),
          kProbable));
    }
  }
  return found;
}

constexpr std::array<std::string_view, 4> kCastStatistics{"scale_inv_max", "underflows%", "mse",
                                                          "scale_staleness"};
constexpr std::array<std::string_view, 3> kTensorStatistics{"cur_amax", "l2_norm", "std"};
constexpr std::ptrdiff_t kMinMissingReads = 3;  // reads

// Returns the reads of the tensor after the last read of its cast.
std::span<const Point> reads_without_cast(const Facts& facts, const Series& cast) {
  for (const std::string_view name : kTensorStatistics) {
    const Series* tensor = facts.beside(cast, name);
    if (tensor == nullptr) continue;
    const auto after = std::ranges::upper_bound(tensor->points, cast.points.back().iteration, {},
                                                &Point::iteration);
    return {after, tensor->points.end()};
  }
  return {};
}

// Detects, without a ledger, layers whose casts are no longer recorded while casts of other layers
// are.
std::vector<Finding> find_ended_casts(const Facts& facts) {
  std::vector<Finding> found;
  for (const std::string_view name : kCastStatistics) {
    for (const Series* cast : facts.with(name)) {
      const bool is_input = cast->place.tensor == TensorName::activation;
      if (!is_input || cast->points.back().iteration >= facts.last_iteration()) continue;
      const auto missing = reads_without_cast(facts, *cast);
      if (std::ssize(missing) < kMinMissingReads) continue;
      const std::int64_t end = missing.back().iteration;
      const bool others_continue = std::ranges::any_of(facts.with(name), [&](const Series* other) {
        return other->points.back().iteration >= end;
      });
      if (!others_continue) continue;
      found.push_back(
          {.cause = "gemm_precision",
           .place = cast->place,
           .first = missing.front().iteration,
           .last = end,
           .confidence = kProbable,
           .summary = "the layer no longer casts its input, while other layers continue to",
           .evidence = {{std::string(name), cast->place, cast->points.back().iteration,
                         cast->points.back().value, "last cast"}},
           .next_step = "add PrecisionLedger to the configuration (configs/is_it_really_fp8.yaml): "
                        "the ledger names the cause"});
    }
    if (!found.empty()) break;
  }
  return found;
}

constexpr std::string_view kFp8Layers = "fp8_layers";

// Detects an FP8 region around a model that was not converted: no layer reads the recipe.
std::vector<Finding> find_regions_without_layers(const Facts& facts) {
  for (const Scalars* layers : scalars_named(facts, kFp8Layers)) {
    if (layers->points.empty() || layers->points.front().value != 0) continue;
    const Point& first = layers->points.front();
    return {{.cause = "gemm_precision",
             .place = {},
             .first = first.iteration,
             .last = facts.last_iteration(),
             .confidence = kProven,
             .summary = "an FP8 autocast region is active, but the model has no FP8 layer: all of "
                        "its GEMMs run in PyTorch's precision",
             .evidence = {{std::string(kFp8Layers), {}, first.iteration, 0, ""}},
             .next_step = "replace the layers before training: call telens.pytorch.convert(model), "
                          "or use Transformer Engine modules in the model's code"}};
  }
  return {};
}

std::vector<Finding> find_gemm_precision(const Facts& facts) {
  if (auto found = find_regions_without_layers(facts); !found.empty()) return found;
  if (facts.gemm_states().empty()) return find_ended_casts(facts);
  std::vector<Finding> found = find_fallbacks(facts);
  return found.empty() ? find_exceptions(facts) : found;
}

}  // namespace

Rule gemm_precision() {
  return {
      .cause = "gemm_precision",
      .title = "GEMM in a different precision than requested",
      .doc =
          "According to the ledger, low precision was requested but high precision ran, a GEMM "
          "switched from low to high precision during the training, or a layer runs in high "
          "precision while layers of its kind do not. High precision that the configuration or the "
          "recipe requests is not reported, and neither are whole first and last blocks. Without a "
          "ledger: a layer whose casts end while its tensors are still recorded, or an attached "
          "model without FP8 layers that runs in an FP8 autocast region.",
      .stage = Stage::setup,
      .optional = {"scale_inv_max", "underflows%", "mse", "scale_staleness", "cur_amax", "l2_norm",
                   "std"},
      .needs_ledger = true,
      .instead_of_ledger = {"scale_inv_max", "underflows%", "mse", "scale_staleness", kFp8Layers},
      .recorded_by = "PrecisionLedger, or LogFp8TensorStats together with LogTensorStats",
      .alternatives = "A layer that is outside of fp8_autocast on purpose.",
      .next_step =
          "telens ledger RUN --layer '{layer}'; configs/is_it_really_fp8.yaml stops a run in which "
          "this happens",
      .find = find_gemm_precision};
}

}  // namespace telens::analysis
