// Answers the hook points of all layers in a session.
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
  // All of them live longer.
  LayerListener(std::int64_t iteration, FeatureSet& features, StatisticsEngine& statistics,
                ObserverIsolation& isolation, EventLog& events)
      : iteration_(iteration),
        features_(features),
        statistics_(statistics),
        isolation_(isolation),
        events_(events),
        calls_(features, statistics, isolation, events) {}

  // From here on layers are answered, until stop(). The features are made. `owner` keeps alive all
  // that a call uses.
  void start(std::shared_ptr<void> owner);
  // No call begins from here on. Returns whether those of other threads have ended; it waits so
  // long at the most.
  bool stop(std::chrono::milliseconds limit);

  // Around a fork(), before the gate of the hook points: the child may have sessions of its own.
  static void prepare_fork() { layers_mutex_.lock(); }
  static void after_fork() { layers_mutex_.unlock(); }

  std::int64_t iteration() const { return iteration_.load(std::memory_order_relaxed); }
  // From outside, to any other: wakes all layers.
  void set_iteration(std::int64_t iteration);
  // The running one is over.
  void end_iteration();
  // Other sections run than before: wakes layers; what was forwarded already keeps its plan.
  void wake();

  // A script hands over tensors of a layer that it calls so.
  void note_script(std::string_view layer_name);
  // True once a layer has run, or a script has passed a tensor.
  bool any_ran();
  // A sentence for each section that selects none of the layers that ran.
  std::vector<std::string> idle_sections(const config::Config& config);
  // At the end of a session: a sentence where step() was forgotten.
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
  // Decided by the layer's name and the configuration, whatever is due or runs at the moment. An
  // unnamed layer gets its name with its first forward in the session; until then it is known only
  // where no feature of any layer may.
  std::optional<bool> may_watch_wgrad(LayerHooks& layer) override;

 private:
  void install(std::shared_ptr<void> owner = nullptr);  // under layers_mutex_
  // The features of a layer. Of an attention those that name one of its tensors.
  std::vector<FeatureInstance*> all_for(LayerKind kind, std::string_view name) const;
  std::shared_ptr<LayerRouting> get_routing(LayerHooks& layer);
  RoutingPlan asked_plan(LayerRouting& routing, const RoutingRequest& request);
  // Where a graph is captured: with the features of sections that do not run yet, too.
  RoutingPlan captured_plan(const LayerRouting& routing, const RoutingRequest& request);
  // The layer may be left alone until something is due again.
  void let_sleep(LayerHooks& layer, const LayerRouting& routing, const RoutingRequest& request);
  void warn_of_shared_name(const std::string& name);
  void log_plan(LayerRouting& routing, const RoutingPlan& plan, bool under_recipe);

  std::atomic<std::uint64_t> number_{0};  // the session's in hook_points; grows with each install()
  std::atomic<std::uint64_t> first_number_{0};  // the number of the first install()
  std::atomic<std::uint64_t> jump_number_{
      0};  // the number of the last one: the iteration has grown since
  std::atomic<std::int64_t> iteration_;

  FeatureSet& features_;
  StatisticsEngine& statistics_;
  ObserverIsolation& isolation_;
  EventLog& events_;
  HookCalls calls_;
  LeftOutLayers left_out_;
  MissingSteps missing_steps_;
  // Where a feature throws in a routing call that only observes.
  const LayerRouting::SwitchOff switch_off_ =
      [this](FeatureInstance& feature, std::string_view layer_name, std::string_view call) {
        isolation_.switch_off(feature, layer_name, call);
      };

  // Over what follows and the states of all layers, which calls of an ended session may still make.
  static inline std::mutex layers_mutex_;
  int unnamed_layers_ = 0;
  int unnamed_attentions_ = 0;
  LayerNameRegistry names_;
};

}  // namespace telens::debug
