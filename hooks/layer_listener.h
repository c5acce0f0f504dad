// What answers the hook points of all layers in a session.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/hook_points.h"
#include "hooks/feature_set.h"
#include "hooks/notices.h"
#include "hooks/seen_layers.h"
#include "hooks/statistics_engine.h"

namespace telens::debug {

class LayerListener final : public HookListener {
 public:
  // All of them live longer.
  LayerListener(std::int64_t iteration, FeatureSet& features, StatisticsEngine& statistics,
                FeatureGuard& guard, Notices& notices)
      : iteration_(iteration),
        features_(features),
        statistics_(statistics),
        guard_(guard),
        notices_(notices) {}
  ~LayerListener() override { stop(); }

  // From here on layers are answered, until stop(). The features are made.
  void start();
  void stop();

  std::int64_t iteration() const { return iteration_.load(std::memory_order_relaxed); }
  // From outside, to any other: wakes all layers.
  void set_iteration(std::int64_t iteration);
  // The running one is over.
  void end_iteration();
  // Other sections run than before: wakes layers; what was forwarded already keeps its plan.
  void wake();

  // A script hands over tensors of a layer that it calls so.
  void note_script(std::string_view layer_name);
  // Of each section that selects none of the layers that ran, a sentence.
  std::vector<std::string> idle_sections(const config::Config& config);

  RoutingPlan route(LayerHooks& layer, const RoutingRequest& request) override;
  Operand modify_tensor(LayerHooks& layer, const RoutingPlan& plan,
                        const ModifyTensorCall& call) override;
  void inspect_tensor(LayerHooks& layer, const RoutingPlan& plan,
                      const InspectTensorCall& call) override;
  void inspect_tensor_postquantize(LayerHooks& layer, const RoutingPlan& plan,
                                   const InspectPostquantizeCall& call) override;
  void inspect_gemm(LayerHooks& layer, const RoutingPlan& plan,
                    const InspectGemmCall& call) override;

 private:
  void install();
  LayerRouting& routing_of(LayerHooks& layer);
  // Where a graph is captured: with the features of sections that do not run yet, too.
  RoutingPlan captured_plan(const LayerRouting& routing, const RoutingRequest& request);
  // The layer may be left alone until something is due again.
  void let_sleep(LayerHooks& layer, const LayerRouting& routing, const RoutingRequest& request);
  DueReaders readers_when_due(const RoutingPlan& plan, TensorName tensor);
  void warn_of_shared_name(const std::string& name);
  void log_plan(LayerRouting& routing, const RoutingPlan& plan, bool under_recipe);

  std::uint64_t number_ = 0;        // of hook_points; grows with each install()
  std::uint64_t first_number_ = 0;  // of the first install()
  std::uint64_t jump_number_ = 0;   // of the last one: the iteration has only grown since
  std::atomic<std::int64_t> iteration_;
  std::atomic<std::uint64_t> steps_{0};

  FeatureSet& features_;
  StatisticsEngine& statistics_;
  FeatureGuard& guard_;
  Notices& notices_;
  // Where a feature throws in a routing call that only observes.
  const LayerRouting::SwitchOff switch_off_ =
      [this](FeatureInstance& feature, std::string_view layer_name, std::string_view call) {
        guard_.switch_off(feature, layer_name, call);
      };

  std::mutex layers_mutex_;  // over what follows and the making of a layer's state
  int unnamed_layers_ = 0;
  SeenLayers seen_;
};

}  // namespace telens::debug
