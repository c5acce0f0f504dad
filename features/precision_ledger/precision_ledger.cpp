// PrecisionLedger: records the precision in which each GEMM ran, and checks it against
// expectations.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "features/builtin_features.h"
#include "features/precision_ledger/precision_ledger_options.h"
#include "hooks/feature_registry.h"
#include "hooks/observer.h"

namespace telens::features {
namespace {

// Returns "BF16", ...
std::string_view get_element(DType dtype) {
  switch (dtype) {
    case DType::bfloat16:
      return "BF16";
    case DType::float16:
      return "FP16";
    case DType::float32:
      return "FP32";
    default:
      return "FP64";
  }
}

// The reason for an operand's precision.
enum class Cause : std::uint8_t {
  recipe,         // as requested by the recipe
  no_recipe,      // no recipe requests quantization
  not_in_recipe,  // the recipe lacks a quantizer for one of the operands
  overridden,     // override_linear_precision
  dequantized,    // backward_override="dequantized"
  disabled,       // a feature answered false to fp8_gemm_enabled
  modified,       // by a feature
  stored,         // a weight that is stored in low precision
};

struct OperandState {
  TensorName tensor = TensorName::activation;
  Precision wished;
  Precision ran;
  Cause cause = Cause::recipe;
  const config::FeatureEntry* by = nullptr;  // the entry that disabled or modified it

  bool is_fallback() const { return wished != ran; }
  bool operator==(const OperandState&) const = default;
};

// One GEMM as it ran: everything that the ledger reports about it. Compared in each iteration,
// written out when it changes.
struct GemmState {
  OperandState a, b;
  std::string_view recipe;  // Recipe::name(), a literal; "none" outside of fp8_autocast
  // Literals (ObservedGemm).
  std::string_view kernel = {};
  std::string_view kernel_reason = {};
  DType output = DType::bfloat16;
  ObservedPadding padding = {};
  // The partner and the method of the overlap; "" if the layer requests none.
  std::string overlap = {};
  std::int64_t overlapped_bytes = 0;  // sent by this rank; depends on the length of the batch

  // Padded tokens are compared by their multiple, so that a batch of another length is not a new
  // state.
  std::int64_t padding_multiple() const { return padding.needed() ? padding.multiple : 1; }

  bool operator==(const GemmState& other) const {
    return a == other.a && b == other.b && recipe == other.recipe && kernel == other.kernel &&
           kernel_reason == other.kernel_reason && output == other.output &&
           padding_multiple() == other.padding_multiple() && overlap == other.overlap;
  }
};

Precision get_precision(const ObservedOperand& operand, DType computed_in) {
  if (!operand.is_quantized()) return {get_element(computed_in), std::nullopt};
  return {telens::get_name(operand.format()), operand.mode()};
}

Precision get_requested_precision(const std::optional<ObservedQuantizer>& quantizer,
                                  DType computed_in) {
  if (!quantizer) return {get_element(computed_in), std::nullopt};
  return {telens::get_name(quantizer->format), quantizer->mode};
}

std::string get_words(const GemmOverlapNote& note) {
  std::string words = fmt::format("{}: {}", note.method, note.collective);
  if (note.parts > 1) words += fmt::format(" in {} parts", note.parts);
  if (!note.hindrance.empty()) words += fmt::format(", not now: {}", note.hindrance);
  return words;
}

Cause cause_in_recipe(const ObservedRecipe& recipe, Gemm gemm) {
  if (!recipe.overridden[static_cast<std::size_t>(gemm)]) return Cause::not_in_recipe;
  return gemm != Gemm::fprop && recipe.dequantized_backward ? Cause::dequantized
                                                            : Cause::overridden;
}

OperandState operand_state(const ObservedGemm& call, std::span<const Alteration> alterations,
                           TensorName tensor, const ObservedOperand& operand,
                           const std::optional<ObservedQuantizer>& quantizer) {
  const DType computed_in = call.output.dtype();
  OperandState state{.tensor = tensor,
                     .wished = get_requested_precision(quantizer, computed_in),
                     .ran = get_precision(operand, computed_in)};
  for (const Alteration& each : alterations) {
    if (each.gemm != call.gemm) continue;
    if (each.modified == tensor) {
      state.cause = Cause::modified;
      state.by = each.by;
      return state;  // outranks fp8_gemm_enabled
    }
    if (!each.modified && state.by == nullptr) {
      state.cause = Cause::disabled;
      state.by = each.by;
    }
  }
  if (state.by != nullptr) return state;
  if (operand.is_quantized()) {
    state.cause = state.is_fallback() ? Cause::stored : Cause::recipe;
  } else if (!call.recipe) {
    state.cause = Cause::no_recipe;
  } else {
    state.cause = cause_in_recipe(*call.recipe, call.gemm);
  }
  return state;
}

GemmState get_state(const ObservedGemm& call, std::span<const Alteration> alterations) {
  return {.a = operand_state(call, alterations, call.a_name, call.a, call.a_quantizer),
          .b = operand_state(call, alterations, call.b_name, call.b, call.b_quantizer),
          .recipe = call.recipe ? call.recipe->name : "none",
          .kernel = call.kernel,
          .kernel_reason = call.kernel_reason,
          .output = call.output.dtype(),
          .padding = call.padding(),
          .overlap = call.overlap == nullptr ? std::string() : get_words(*call.overlap),
          .overlapped_bytes = call.overlap == nullptr ? 0 : call.overlap->bytes};
}

std::string get_reason(const OperandState& state) {
  const auto feature = [&] {
    return fmt::format("{} in section `{}`", state.by->written_name, state.by->section);
  };
  switch (state.cause) {
    case Cause::recipe:
      break;
    case Cause::no_recipe:
      return "no recipe: it ran outside of fp8_autocast";
    case Cause::not_in_recipe:
      return "the recipe leaves an operand of this GEMM in high precision";
    case Cause::overridden:
      return "override_linear_precision of the recipe";
    case Cause::dequantized:
      return "backward_override='dequantized' of the recipe";
    case Cause::disabled:
      return feature();
    case Cause::modified:
      return fmt::format("{} modified the {}", feature(), telens::get_name(state.tensor));
    case Cause::stored:
      return "the weight is stored in this precision";
  }
  return "the recipe wants it so";
}

// Returns how to convert a linear layer of another library, given its kind ("paddle's Linear"), to
// a TELens layer.
std::string_view advice_for(std::string_view kind) {
  return kind.starts_with("paddle's")
             ? "replace it by a telens.paddle.Linear, whose weight is transposed"
             : "convert it with telens.pytorch.convert, whose report lists skipped layers and "
               "reasons";
}

class PrecisionLedger final : public ScheduledObserver {
 public:
  PrecisionLedger(const config::FeatureEntry& entry, FeatureServices& services)
      : ScheduledObserver(
            entry, {.inspect_gemm = true, .look_at_products = false, .inspect_attention = true}),
        services_(services),
        options_(entry.selections.front().options_as<PrecisionLedgerOptions>()),
        met_(options_.expect.size()) {}

  void observe_gemm(const FeatureCall& at, const ObservedGemm& call,
                    std::span<const Alteration> alterations) override;
  void observe_attention(const FeatureCall& at, const ObservedAttention& call) override;
  bool looks_at_attention() const override { return true; }
  // The capture of a CUDA graph fixes the precision in which a GEMM runs.
  bool can_be_captured() const override { return true; }
  void note_foreign_layer(std::string_view layer_name, std::string_view kind) override;
  void step(std::int64_t iteration) override;
  void end() override;

 private:
  // One GEMM of a layer: its last state, and how often the state has changed.
  struct Entry {
    GemmState state;
    std::int64_t number = -1;
  };

  // A state of an attention.
  struct AttentionEntry {
    AttentionEntry(const ObservedAttention& call, std::int64_t entry_number)
        : kernel(call.kernel),
          reason(call.reason),
          computed_in(call.computed_in),
          widened_by(call.widened_by),
          cast_to(call.cast_to),
          cast_in(call.cast_in),
          given(call.query.dtype()),
          number(entry_number) {}

    // As in ObservedAttention, whose `reason` lives only during the call.
    std::string_view kernel;
    std::string reason;
    DType computed_in;
    std::string_view widened_by;
    std::string_view cast_to;
    ScalingMode cast_in;
    DType given;  // the dtype of the given queries, keys and values
    std::int64_t number;

    bool is(const ObservedAttention& call) const {
      return given == call.query.dtype() && kernel == call.kernel && reason == call.reason &&
             computed_in == call.computed_in && cast_to == call.cast_to;
    }
  };
  // The states of a layer in an iteration. Micro-batches with and without padding may alternate
  // indefinitely, so a state is new only if neither this iteration nor the last one had it.
  struct Attention {
    std::vector<AttentionEntry> last;
    std::vector<AttentionEntry> now;
    std::int64_t written = 0;
  };

  // A linear layer of another library.
  struct ForeignLayer {
    std::string kind;
    bool warned = false;
  };

  void add_row(std::int64_t iteration, std::string_view layer, std::string_view gemm,
               std::string_view entry, std::string_view detail, std::int64_t state);
  void write(const FeatureCall& at, Gemm gemm, const Entry& entry);
  void write(const FeatureCall& at, const AttentionEntry& entry);
  void judge(const FeatureCall& at, Gemm gemm, const Entry& entry);
  void stop_where_violated();
  void warn_of_foreign_layers();
  // Returns the rule that applies to an operand; nullptr if none applies.
  const ExpectedPrecision* rule_for(std::string_view layer, Gemm gemm, TensorName tensor);

  FeatureServices& services_;
  const PrecisionLedgerOptions& options_;  // the options of the entry

  std::mutex mutex_;  // guards the members below
  std::map<std::string, std::array<Entry, kAllGemms.size()>, std::less<>> entries_;
  std::map<std::string, Attention, std::less<>> attentions_;
  std::vector<bool> met_;                                // by rule: whether it matched any GEMM
  std::map<std::string, bool, std::less<>> violations_;  // true if it has stopped the run
  std::map<std::string, ForeignLayer, std::less<>> foreign_;
};

void PrecisionLedger::observe_gemm(const FeatureCall& at, const ObservedGemm& call,
                                   std::span<const Alteration> alterations) {
  const GemmState state = get_state(call, alterations);
  const std::lock_guard lock(mutex_);
  auto of_layer = entries_.find(at.layer_name);
  if (of_layer == entries_.end()) {
    of_layer = entries_.try_emplace(std::string(at.layer_name)).first;
  }
  Entry& entry = of_layer->second[static_cast<std::size_t>(call.gemm)];
  if (entry.number >= 0 && entry.state == state) return;
  entry = {state, entry.number + 1};
  write(at, call.gemm, entry);
  judge(at, call.gemm, entry);
}

void PrecisionLedger::add_row(std::int64_t iteration, std::string_view layer, std::string_view gemm,
                              std::string_view entry, std::string_view detail, std::int64_t state) {
  using record::Dictionary;
  record::NameTable& names = services_.names();
  services_.record_row(record::LedgerRow{.iteration = iteration,
                                         .layer = names.id(Dictionary::layer, layer),
                                         .gemm = names.id(Dictionary::gemm, gemm),
                                         .entry = names.id(Dictionary::word, entry),
                                         .detail = names.id(Dictionary::word, detail),
                                         .value = static_cast<double>(state)});
}

void PrecisionLedger::write(const FeatureCall& at, Gemm gemm, const Entry& entry) {
  const auto add = [&](std::string_view name, std::string_view detail) {
    add_row(at.iteration, at.layer_name, telens::get_name(gemm), name, detail, entry.number);
  };
  const GemmState& state = entry.state;
  for (const OperandState& operand : {state.a, state.b}) {
    const std::string_view name = telens::get_name(operand.tensor);
    add(fmt::format("{} requested", name), describe(operand.wished));
    add(fmt::format("{} ran", name), describe(operand.ran));
    add(fmt::format("{} {}", name, operand.is_fallback() ? "fallback" : "cause"),
        get_reason(operand));
  }
  add("recipe", state.recipe);
  add("kernel", state.kernel);
  if (!state.kernel_reason.empty()) add("kernel cause", state.kernel_reason);
  if (const ObservedPadding& padding = state.padding; padding.needed()) {
    add("padding", fmt::format("tokens to a multiple of {}, at first {} to {}", padding.multiple,
                               padding.tokens, padding.padded));
  }
  if (!state.overlap.empty()) {
    add("overlap",
        fmt::format("{}; at first {} bytes sent", state.overlap, state.overlapped_bytes));
  }
  add("output ran", get_element(state.output));
}

void PrecisionLedger::observe_attention(const FeatureCall& at, const ObservedAttention& call) {
  const std::lock_guard lock(mutex_);
  Attention& attention = attentions_[std::string(at.layer_name)];
  const auto find = [&](std::vector<AttentionEntry>& entries) {
    return std::find_if(entries.begin(), entries.end(),
                        [&](const AttentionEntry& each) { return each.is(call); });
  };
  if (find(attention.now) != attention.now.end()) return;
  if (const auto known = find(attention.last); known != attention.last.end()) {
    attention.now.push_back(*known);
    return;
  }
  attention.now.emplace_back(call, attention.written++);
  write(at, attention.now.back());
}

// The rules of `expect` do not apply: an attention is not a GEMM.
void PrecisionLedger::write(const FeatureCall& at, const AttentionEntry& entry) {
  const auto add = [&](std::string_view name, std::string_view detail) {
    add_row(at.iteration, at.layer_name, "attention", name, detail, entry.number);
  };
  const bool cast = !entry.cast_to.empty();
  const bool widened = !cast && entry.given != entry.computed_in;
  const std::string codes = cast ? describe({entry.cast_to, entry.cast_in}) : "";
  for (const TensorName tensor : {TensorName::query, TensorName::key, TensorName::value}) {
    const std::string_view name = telens::get_name(tensor);
    add(fmt::format("{} requested", name), cast ? codes : get_element(entry.given));
    add(fmt::format("{} ran", name), cast ? codes : get_element(entry.computed_in));
    add(fmt::format("{} {}", name, widened ? "fallback" : "cause"),
        widened ? entry.widened_by
        : cast  ? std::string_view("the recipe's fp8_dpa")
                : std::string_view("as it came"));
  }
  add("kernel", entry.kernel);
  if (!entry.reason.empty()) add("kernel cause", entry.reason);
  add("output ran", get_element(entry.given));
}

const ExpectedPrecision* PrecisionLedger::rule_for(std::string_view layer, Gemm gemm,
                                                   TensorName tensor) {
  const ExpectedPrecision* rule = nullptr;
  for (std::size_t i = 0; i < options_.expect.size(); ++i) {
    if (!options_.expect[i].is_about(layer, gemm, tensor)) continue;
    met_[i] = true;
    rule = &options_.expect[i];
  }
  return rule;
}

// Writes one sentence for both operands if it is the same, otherwise one for each.
void PrecisionLedger::judge(const FeatureCall& at, Gemm gemm, const Entry& entry) {
  const auto broken_rule = [&](const OperandState& operand) {
    const ExpectedPrecision* rule = rule_for(at.layer_name, gemm, operand.tensor);
    return rule != nullptr && !rule->holds(operand.ran) ? rule : nullptr;
  };
  const auto report = [&](const ExpectedPrecision& rule, const OperandState& operand, bool both) {
    const std::string whose =
        both ? std::string() : fmt::format(" {}", telens::get_name(operand.tensor));
    std::string text =
        fmt::format("{} {}{} was to be {}, ran in {}: {}", at.layer_name, telens::get_name(gemm),
                    whose, rule.format, describe(operand.ran), get_reason(operand));
    if (!violations_.emplace(text, false).second) return;
    add_row(at.iteration, at.layer_name, telens::get_name(gemm), "violation", text, entry.number);
  };
  const auto& [a, b] = std::tie(entry.state.a, entry.state.b);
  const ExpectedPrecision* of_a = broken_rule(a);
  const ExpectedPrecision* of_b = broken_rule(b);
  const bool both = of_a != nullptr && of_a == of_b && a.ran == b.ran && a.cause == b.cause;
  if (of_a != nullptr) report(*of_a, a, both && a.cause != Cause::modified);
  if (of_b != nullptr && !(both && a.cause != Cause::modified)) report(*of_b, b, false);
}

void PrecisionLedger::stop_where_violated() {
  std::string list;
  std::size_t count = 0;
  for (auto& [text, reported] : violations_) {
    if (std::exchange(reported, true)) continue;
    list += "\n  " + text;
    ++count;
  }
  if (count == 0) return;
  services_.stop_run(fmt::format(
      "PrecisionLedger in section `{}`: {} not hold:{}", entry().section,
      count == 1 ? std::string("1 expectation does") : fmt::format("{} expectations do", count),
      list));
}

// Recipes do not apply to it, and its GEMMs cannot be observed.
void PrecisionLedger::note_foreign_layer(std::string_view layer_name, std::string_view kind) {
  const std::lock_guard lock(mutex_);
  if (!foreign_.emplace(layer_name, ForeignLayer{std::string(kind)}).second) return;
  const auto add = [&](std::string_view name, std::string_view detail) {
    add_row(0, layer_name, "all", name, detail, 0);
  };
  add("weight requested", "unknown");
  add("weight ran", fmt::format("not seen: {}", kind));
  add("weight fallback",
      fmt::format("not a layer of TELens: no recipe applies to it; {}", advice_for(kind)));
  add("kernel", "not seen");
  for (const Gemm gemm : kAllGemms) rule_for(layer_name, gemm, TensorName::weight);
}

void PrecisionLedger::warn_of_foreign_layers() {
  std::string first;
  std::string_view advice;
  std::size_t count = 0;
  for (auto& [name, layer] : foreign_) {
    if (std::exchange(layer.warned, true)) continue;
    if (++count > 1) continue;
    first = name;
    advice = advice_for(layer.kind);
  }
  if (count == 0) return;
  services_.log_message(
      fmt::format(
          "PrecisionLedger in section `{}`: {} of the model ({}{}) is not a TELens layer: no "
          "recipe applies, and its precision is not recorded; {}",
          entry().section,
          count == 1 ? "a linear layer" : fmt::format("each of {} linear layers", count), first,
          count == 1 ? "" : ", ...", advice),
      {}, debug::LogLevel::warning);
}

void PrecisionLedger::step(std::int64_t) {
  const std::lock_guard lock(mutex_);
  warn_of_foreign_layers();
  for (auto& [layer, attention] : attentions_) {
    if (attention.now.empty()) continue;  // it did not run
    attention.last = std::exchange(attention.now, {});
  }
  stop_where_violated();
}

// An expectation that matches nothing would report success without having checked anything.
void PrecisionLedger::end() {
  const std::lock_guard lock(mutex_);
  stop_where_violated();
  for (std::size_t i = 0; i < met_.size(); ++i) {
    if (met_[i]) continue;
    services_.log_message(
        fmt::format("PrecisionLedger in section `{}`: rule {} of `expect` (format: {}) matched "
                    "no GEMM that ran; compare its layers, gemms and tensors with the output of "
                    "`telens ledger`",
                    entry().section, i + 1, options_.expect[i].format),
        {}, debug::LogLevel::warning);
  }
}

}  // namespace

FeatureRegistration precision_ledger() {
  return {precision_ledger_description(),
          [](const config::FeatureEntry& entry, FeatureServices& services) {
            return std::make_unique<PrecisionLedger>(entry, services);
          }};
}

}  // namespace telens::features
