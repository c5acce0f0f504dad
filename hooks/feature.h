// A feature: what a section of the configuration switches on for the layers that it selects.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/hook_points.h"
#include "hooks/config/config.h"
#include "hooks/decisions.h"
#include "hooks/section_switches.h"
#include "hooks/session_options.h"
#include "hooks/sink.h"
#include "hooks/statistics_engine.h"
#include "hooks/thinning.h"

namespace telens {

// The answer of a routing call. `enabled` holds for the iteration that was asked about,
// next_iteration is the next one to ask in; empty: never again. for_ever: of what alters operands
// in this iteration, that it does so in all later ones; only that can be captured into a graph.
struct RoutingAnswer {
  bool enabled = false;
  std::optional<std::int64_t> next_iteration = {};
  bool for_ever = false;

  static RoutingAnswer never() { return {false, std::nullopt}; }
  static RoutingAnswer always() { return {true, std::nullopt}; }
};

// The routing calls that a feature answers otherwise than the contract's default.
struct RoutingCalls {
  bool fp8_gemm = true;
  bool modify = true;
  bool inspect = true;
  bool inspect_postquantize = true;
  bool inspect_gemm = false;       // ours, beside the contract's calls
  bool inspect_attention = false;  // ours

  static RoutingCalls none() { return {false, false, false, false}; }
};

// The layer that calls, and when.
struct FeatureCall {
  std::string_view layer_name;
  std::int64_t iteration;
  // In GEMM calls: what the feature wants to keep of this forward until its backward. Starts empty
  // in every forward and dies with its autograd graph; the calls of one forward-backward never
  // overlap. nullptr in routing calls.
  std::shared_ptr<void>* kept = nullptr;
};

// A change that a feature made to a GEMM.
struct Alteration {
  Gemm gemm;
  std::optional<TensorName> modified;  // empty: it answered false to fp8_gemm_enabled
  const config::FeatureEntry* by;
};

// The session, as its features see it. It lives longer than they do.
class FeatureServices {
 public:
  virtual ~FeatureServices() = default;

  virtual StatisticsEngine& statistics() = 0;
  virtual SeriesTable& series() = 0;

  // How the session began: log_dir, rank.
  virtual const debug::InitializeOptions& options() const = 0;

  // A value of one's own, handed to the sinks at the next step(). Any thread.
  virtual void record(const Row& row) = 0;

  // The same for a histogram, and for rows of a table of record/rows, whose names are ids of
  // names(). They go to the run file alone; scalars go to the loggers too.
  virtual void record_histogram(HistogramRow histogram) = 0;
  virtual void record_rows(const record::SomeRows& rows) = 0;
  template <typename TableRow>
  void record_row(const TableRow& row) {
    record_rows(std::span<const TableRow>(&row, 1));
  }
  record::NameTable& names() { return series().names(); }

  // The configuration of the session, and its switches.
  virtual const config::Config& config() const = 0;
  virtual SectionSwitches& sections() = 0;

  // A WARNING message that is an event of this kind in the run file. In step() alone.
  virtual void announce(std::string_view kind, const std::string& text,
                        std::string_view layer_name) = 0;

  // Makes the running (or next) step() throw RunStopped with this text, once everything that came
  // before is in the run file. For what is meant to stop a run; any thread.
  virtual void stop_run(std::string text) = 0;

  // Into the log, once per text and layer.
  virtual void log_message(std::string_view message, std::string_view layer_name,
                           debug::LogLevel level) = 0;
};

// The seven calls. An instance serves one entry of the configuration: all layers of one section.
// Calls may come from autograd's threads, several at a time; a feature that keeps state locks it.
// The bodies here are the contract's defaults.
class TELENS_EXPORT Feature {
 public:
  virtual ~Feature() = default;

  // Calls that are left out here are never made, so that layers need not stay awake for them.
  virtual RoutingCalls routing_calls() const { return {}; }

  // True if inspect_tensor asks its TensorReading for statistics of the tensor in an iteration in
  // which the entry is due: ranks exchange them then. The answer may depend on the configuration
  // alone, so that all ranks give the same one.
  virtual bool reads_statistics(TensorName tensor, std::int64_t iteration) const {
    return routing_calls().inspect;
  }

  virtual RoutingAnswer fp8_gemm_enabled(const FeatureCall& at, Gemm gemm) {
    return RoutingAnswer::always();
  }
  virtual RoutingAnswer modify_tensor_enabled(const FeatureCall& at, Gemm gemm, TensorName tensor) {
    return RoutingAnswer::never();
  }
  virtual RoutingAnswer inspect_tensor_enabled(const FeatureCall& at, TensorName tensor) {
    return RoutingAnswer::never();
  }
  virtual RoutingAnswer inspect_tensor_postquantize_enabled(const FeatureCall& at, Gemm gemm,
                                                            TensorName tensor) {
    return RoutingAnswer::never();
  }
  virtual RoutingAnswer inspect_gemm_enabled(const FeatureCall& at, Gemm gemm) {
    return RoutingAnswer::never();
  }
  // Asked of attentions, which ask the feature only where looks_at_attention() is true.
  virtual RoutingAnswer inspect_attention_enabled(const FeatureCall& at) {
    return RoutingAnswer::never();
  }

  // Returns what takes the place of call.tensor; an exception stops the run. Where call.out is
  // given it is to be filled, and the result is ignored. The default throws UsageError: a
  // feature that answers true to modify_tensor_enabled overrides it.
  virtual Operand modify_tensor(const FeatureCall& at, const ModifyTensorCall& call);

  // They must change nothing. A feature that throws here is switched off for the session.
  virtual void inspect_tensor(const FeatureCall& at, const InspectTensorCall& call,
                              TensorReading& reading) {}
  virtual void inspect_tensor_postquantize(const FeatureCall& at,
                                           const InspectPostquantizeCall& call) {}
  // `alterations`: what features do to the three GEMMs of this forward-backward.
  virtual void inspect_gemm(const FeatureCall& at, const InspectGemmCall& call,
                            std::span<const Alteration> alterations) {}
  virtual void inspect_attention(const FeatureCall& at, const InspectAttentionCall& call) {}

  // True if it may look at the product of wgrad or change it, in any iteration: by the calls that
  // it answers, unless it knows better. Layers that accumulate gradients inside that GEMM can go on
  // doing so where no feature does.
  virtual bool may_watch_wgrad() const {
    const RoutingCalls calls = routing_calls();
    return calls.inspect || calls.modify || calls.inspect_gemm;
  }

  // The session calls it once, before the first of the calls above. A feature that looks at
  // schedules asks them with the factor.
  void thin_by(const Thinning& thinning) { thinning_ = &thinning; }
  std::int64_t thinning_factor() const { return thinning_ == nullptr ? 1 : thinning_->factor(); }

  // True if attentions are to ask it although its selections name none of their tensors, which is
  // what makes them ask.
  virtual bool looks_at_attention() const { return false; }

  // True if due iterations are those of the entry's schedules, or the feature's own affair.
  virtual bool follows_schedules() const { return false; }

  // True if its calls may be made while a graph is captured (CUDA graphs) and not again when it is
  // replayed: of one that asks its TensorReading for statistics, or enqueues operators, and neither
  // looks at values nor keeps anything from call to call. While a graph is captured, calls that
  // observe are made also where only a later iteration wants them.
  virtual bool can_be_captured() const { return false; }

  // The model has a linear layer of another library under this name, whose GEMMs make no calls;
  // `kind` says what it is. Told of layers that the feature's section selects.
  virtual void note_foreign_layer(std::string_view layer_name, std::string_view kind) {}

  // The feature itself if it decides for all ranks, else null.
  virtual Decider* decider() { return nullptr; }

  // The end of an iteration, before its rows are handed to the sinks; and of the session.
  virtual void step(std::int64_t iteration) {}
  virtual void end() {}

 private:
  const Thinning* thinning_ = nullptr;  // the thinning of the section's budget
};

struct NamedValue {
  std::string name;
  double value;
};

// A feature that a script drives by debug.log_tensor_stats(), for tensors with names of its own.
class TELENS_EXPORT ScriptDrivenFeature : public Feature {
 public:
  RoutingCalls routing_calls() const final { return RoutingCalls::none(); }

  // The tensor's statistics in their order; empty where it is not selected or not due, which the
  // configuration and the iteration alone decide. Those of all ranks' tensors if there is a group.
  virtual std::vector<NamedValue> log_tensor(const FeatureCall& at, std::string_view tensor_name,
                                             const at::Tensor& tensor,
                                             const debug::ReductionGroup& group) = 0;
};

// Makes the instance for an entry; throws ConfigError for what the description could not check.
using FeatureFactory = std::function<std::unique_ptr<Feature>(const config::FeatureEntry& entry,
                                                              FeatureServices& services)>;

}  // namespace telens
