// Answers the layers' hook points in a session.
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

#include "core/hook_points.h"
#include "hooks/session/event_log.h"
#include "hooks/session/feature_set.h"
#include "hooks/session/hook_calls.h"
#include "hooks/session/layer_name_registry.h"
#include "hooks/session/left_out_layers.h"
#include "hooks/session/missing_steps.h"
#include "hooks/statistics_engine.h"

namespace telens::debug {

class LayerListener final : public HookListener {
 public:
  // All references outlive it.
  LayerListener(std::int64_t iteration, FeatureSet& features, StatisticsEngine& statistics,
                ObserverIsolation& isolation, EventLog& events)
      : iteration_(iteration),
        features_(features),
        statistics_(statistics),
        isolation_(isolation),
        events_(events),
        calls_(features, statistics, isolation, events) {}

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

  RoutingPlan route(LayerHooks& layer, const RoutingRequest& request) override;
  Operand modify_tensor(LayerHooks&, const RoutingPlan& plan,
                        const ModifyTensorCall& call) override {
    return calls_.modify_tensor(plan, call);
  }
  void inspect_tensor(LayerHooks&, const RoutingPlan& plan,
                      const InspectTensorCall& call) override {
    calls_.inspect_tensor(plan, call);
  }
  void inspect_tensor_postquantize(LayerHooks&, const RoutingPlan& plan,
                                   const InspectPostquantizeCall& call) override {
    calls_.inspect_tensor_postquantize(plan, call);
  }
  void inspect_gemm(LayerHooks&, const RoutingPlan& plan, const InspectGemmCall& call) override {
    calls_.inspect_gemm(plan, call);
  }
  void inspect_attention(LayerHooks&, const RoutingPlan& plan,
                         const InspectAttentionCall& call) override {
    calls_.inspect_attention(plan, call);
  }
  // Decided by the layer's name and the configuration, independent of the schedule. An unnamed
  // layer gets its name at its first forward in the session; before that, the answer is only known
  // if no feature may watch any layer.
  std::optional<bool> may_watch_wgrad(LayerHooks& layer) override;

 private:
  void install(std::shared_ptr<void> owner = nullptr);  // requires layers_mutex_
  // Returns the features of a layer. For an attention, only features that name one of its tensors.
  std::vector<FeatureInstance*> all_for(LayerKind kind, std::string_view name) const;
  std::shared_ptr<LayerRouting> get_routing(LayerHooks& layer);
  RoutingPlan asked_plan(LayerRouting& routing, const RoutingRequest& request);
  // The plan during a graph capture: also includes the features of sections that do not run yet.
  RoutingPlan captured_plan(const LayerRouting& routing, const RoutingRequest& request);
  // Lets the layer sleep until something is due again.
  void let_sleep(LayerHooks& layer, const LayerRouting& routing, const RoutingRequest& request);
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
