// Answers the layers' hook points in a session. No LibTorch: hooks/libtorch/hook_adapter.cpp
// receives the calls of layers.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/layer_hooks.h"
#include "hooks/observation.h"
#include "hooks/session/feature_set.h"
#include "hooks/session/layer_routing.h"
#include "hooks/session/logs.h"
#include "hooks/statistics_engine.h"

namespace telens::debug {

// Records in the run file the iterations in which a layer's delayed scaling does not have an amax
// history yet: in these the scale is 1, and the losses of a cast do not show how well FP8 fits.
class WarmUpNotes {
 public:
  // A history that is never updated, for example if the model is only evaluated, is recorded for
  // this many iterations; after that it is not a warm-up.
  static constexpr int kMost = 16;

  explicit WarmUpNotes(EventLog& events) : events_(events) {}

  // Notes a tensor of the layer that this quantizer casts; nullopt if none does. Any thread; once a
  // history exists, it costs one comparison.
  void see(std::string_view layer_name, std::int64_t iteration,
           const std::optional<ObservedQuantizer>& quantizer) {
    if (!quantizer || quantizer->history_updates != 0) return;
    note(layer_name, iteration);
  }

 private:
  struct Noted {
    std::int64_t iteration = -1;
    int times = 0;
  };
  void note(std::string_view layer_name, std::int64_t iteration);

  EventLog& events_;
  std::mutex mutex_;
  std::map<std::string, Noted, std::less<>> noted_;  // keyed by layer
};

// The layers for which calls are skipped because they only ran in evaluations.
class LeftOutLayers {
 public:
  // Thread-safe.
  void note(const LayerRouting& routing);
  // At the end of an iteration: warns, once per session, if no layer of that name has trained.
  // While a training runs, skipping evaluations is intended; for a model that is only evaluated,
  // the run file would stay empty.
  void warn(EventLog& events);

 private:
  bool warned_ = false;  // only used by warn()

  // Guards layers_: the layers of the running iteration by name, and whether each has run in
  // training mode since.
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<std::atomic<bool>>> layers_;
};

// Detects a training that never calls debug.step(), so that all of it is recorded as one iteration.
class MissingSteps {
 public:
  // Called when a layer is asked in a forward that belongs to a training; a layer with features is
  // asked in every forward of the first iteration. Returns a sentence at the first forward of a
  // layer that exceeds a plausible number of micro-batches in one iteration. Any thread.
  std::optional<std::string> note_forward(LayerRouting& routing, std::int64_t iteration);

  // Called by debug.step().
  void note_step();
  // Called when the iteration is set from outside.
  void note_jump();

  // At the end of the session: returns a sentence if step() was never called, unless layers only
  // ran once.
  std::optional<std::string> at_end(std::int64_t iteration) const;

 private:
  static constexpr int kForwardsBeforeWarning = 1000;

  std::atomic<std::uint64_t> iterations_{0};  // started since the first one
  std::atomic<int> most_forwards_{0};         // maximum over layers in the running iteration
  std::atomic<bool> is_settled_{false};       // there was a step, or the user was warned
};

// Throws UsageError, naming layer and feature, if the feature's calls cannot be part of a graph.
void check_can_be_captured(const FeatureInstance& instance, std::string_view layer_name,
                           std::string_view call_name);

// Dispatches the observing calls of a layer to the features of its routing plan. Thread-safe.
class HookCalls {
 public:
  // All arguments outlive it.
  HookCalls(FeatureSet& features, StatisticsEngine& statistics, ObserverIsolation& isolation,
            EventLog& events)
      : features_(features), statistics_(statistics), isolation_(isolation), warm_up_(events) {}

  void inspect_tensor(const RoutingPlan& plan, const ObservedTensor& call);
  void inspect_tensor_postquantize(const RoutingPlan& plan, const ObservedCopy& call);
  void inspect_gemm(const RoutingPlan& plan, const ObservedGemm& call);
  void inspect_attention(const RoutingPlan& plan, const ObservedAttention& call);

 private:
  DueReaders readers_when_due(const RoutingPlan& plan, TensorName tensor);

  FeatureSet& features_;
  StatisticsEngine& statistics_;
  ObserverIsolation& isolation_;
  WarmUpNotes warm_up_;
};

class LayerListener;

// Returns a listener that passes the calls of layers on to `listener`, which outlives it. Defined
// in hooks/libtorch/hook_adapter.cpp.
std::shared_ptr<HookListener> make_hook_adapter(LayerListener& listener);

// The circumstances of a forward that a layer's framework knows.
struct ForwardSite {
  bool records_gradients = true;        // autograd builds a graph
  std::optional<DeviceId> device = {};  // nullopt if the request names no tensor
  bool is_captured = false;             // the forward becomes part of a graph (CUDA graphs)
  bool has_graphs = false;              // forwards on that device can be captured
};

class LayerListener {
 public:
  // All references outlive it.
  LayerListener(std::int64_t iteration, FeatureSet& features, StatisticsEngine& statistics,
                ObserverIsolation& isolation, EventLog& events)
      : iteration_(iteration),
        features_(features),
        statistics_(statistics),
        isolation_(isolation),
        events_(events),
        calls_(features, statistics, isolation, events),
        adapter_(make_hook_adapter(*this)) {}

  // Answers layers from here on, until stop(). The features exist already. `owner` keeps alive
  // everything that a call uses.
  void start(std::shared_ptr<void> owner);
  // No call begins after this. Returns true if the calls of other threads have ended; waits at most
  // this long.
  bool stop(std::chrono::milliseconds limit);

  // Runs around a fork(), before the gate of the hook points: the child may open its own sessions.
  static void prepare_fork() { layers_mutex_.lock(); }
  static void after_fork() { layers_mutex_.unlock(); }

  std::int64_t iteration() const { return iteration_.load(std::memory_order_relaxed); }
  // Sets any iteration from outside: wakes all layers.
  void set_iteration(std::int64_t iteration);
  // Ends the running iteration.
  void end_iteration();
  // Called when other sections run than before: wakes layers; earlier forwards keep their plans.
  void wake();

  // Notes that a script passes tensors of a layer with this name.
  void note_script(std::string_view layer_name);
  // Returns true once a layer has run, or a script has passed a tensor.
  bool any_ran();
  // Returns a sentence for each section that selects none of the layers that ran.
  std::vector<std::string> idle_sections(const config::Config& config);
  // At the end of a session: returns a sentence if step() was forgotten.
  std::optional<std::string> missing_steps() const { return missing_steps_.at_end(iteration()); }

  RoutingPlan route(LayerHooks& layer, const RoutingRequest& request, const ForwardSite& site);
  HookCalls& calls() { return calls_; }
  // Decided by the layer's name and the configuration, independent of the schedule. An unnamed
  // layer gets its name at its first forward in the session; before that, the answer is only known
  // if no feature may watch any layer.
  std::optional<bool> may_watch_wgrad(LayerHooks& layer);

 private:
  void install(std::shared_ptr<void> owner = nullptr);  // requires layers_mutex_
  // Returns the features of a layer. For an attention, only features that name one of its tensors.
  std::vector<FeatureInstance*> all_for(LayerKind kind, std::string_view name) const;
  std::shared_ptr<LayerRouting> get_routing(LayerHooks& layer);
  RoutingPlan asked_plan(LayerRouting& routing, const RoutingRequest& request,
                         const ForwardSite& site);
  // The plan during a graph capture: also includes the features of sections that do not run yet.
  RoutingPlan captured_plan(const LayerRouting& routing, const RoutingRequest& request);
  // Lets the layer sleep until something is due again.
  void let_sleep(LayerHooks& layer, const LayerRouting& routing, const RoutingRequest& request,
                 const ForwardSite& site);
  void warn_of_shared_name(const std::string& name);
  void log_plan(LayerRouting& routing, const RoutingPlan& plan, bool under_recipe);

  // the session's number in hook_points; grows with each install()
  std::atomic<std::uint64_t> number_{0};
  std::atomic<std::uint64_t> first_number_{0};  // the number of the first install()
  std::atomic<std::uint64_t> jump_number_{
      0};  // number of the latest jump: the iteration has only increased since
  std::atomic<std::int64_t> iteration_;

  FeatureSet& features_;
  StatisticsEngine& statistics_;
  ObserverIsolation& isolation_;
  EventLog& events_;
  HookCalls calls_;
  const std::shared_ptr<HookListener> adapter_;  // the installed listener
  LeftOutLayers left_out_;
  MissingSteps missing_steps_;
  // Called if a feature throws in a routing call that only observes.
  const LayerRouting::SwitchOff switch_off_ =
      [this](FeatureInstance& feature, std::string_view layer_name, std::string_view call) {
        isolation_.switch_off(feature, layer_name, call);
      };

  // Guards the members below and the layers' states, which calls of an ended session may still use.
  static inline std::mutex layers_mutex_;
  int unnamed_layers_ = 0;
  int unnamed_attentions_ = 0;
  LayerNameRegistry names_;
};

}  // namespace telens::debug
