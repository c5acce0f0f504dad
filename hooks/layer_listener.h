// What answers the hook points of all layers in a session.
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
#include "hooks/event_log.h"
#include "hooks/feature_set.h"
#include "hooks/seen_layers.h"
#include "hooks/statistics_engine.h"
#include "hooks/untouched.h"
#include "hooks/warm_up_notes.h"

namespace telens::debug {

class LayerListener final : public HookListener {
 public:
  // All of them live longer.
  LayerListener(std::int64_t iteration, FeatureSet& features, StatisticsEngine& statistics,
                FeatureGuard& guard, EventLog& events)
      : iteration_(iteration),
        features_(features),
        statistics_(statistics),
        guard_(guard),
        events_(events),
        warm_up_(events) {}

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
  // Decided by the layer's name and the configuration, whatever is due or runs at the moment. An
  // unnamed layer gets its name with its first forward in the session; until then it is known only
  // where no feature of any layer may.
  std::optional<bool> may_watch_wgrad(LayerHooks& layer) override;

 private:
  void install(std::shared_ptr<void> owner = nullptr);  // under layers_mutex_
  std::shared_ptr<LayerRouting> routing_of(LayerHooks& layer);
  RoutingPlan asked_plan(LayerRouting& routing, const RoutingRequest& request);
  // Where a graph is captured: with the features of sections that do not run yet, too.
  RoutingPlan captured_plan(const LayerRouting& routing, const RoutingRequest& request);
  // The layer may be left alone until something is due again.
  void let_sleep(LayerHooks& layer, const LayerRouting& routing, const RoutingRequest& request);
  DueReaders readers_when_due(const RoutingPlan& plan, TensorName tensor);
  void warn_of_shared_name(const std::string& name);
  // An observing call. Foreign code that writes to what `show` names is switched off, and the
  // random numbers that it draws are put back.
  struct Shown {
    std::string_view layer_name;
    std::string_view call_name;
    std::optional<at::Device> device;  // nullopt: of a graph that is captured, nothing is checked
  };
  using Show = std::function<void(Unwritten& tensors)>;
  void observe(FeatureInstance& feature, const Shown& shown, const Show& show,
               const std::function<void()>& call);
  void tell_of_randomness(FeatureInstance& feature, std::string_view layer_name,
                          std::string_view call_name);
  // A forward of a layer that has only run in evaluations, of which something was left out.
  void note_left_out(const LayerRouting& routing);
  void warn_of_left_out();
  void log_plan(LayerRouting& routing, const RoutingPlan& plan, bool under_recipe);

  std::atomic<std::uint64_t> number_{0};        // of hook_points; grows with each install()
  std::atomic<std::uint64_t> first_number_{0};  // of the first install()
  std::atomic<std::uint64_t> jump_number_{0};   // of the last one: the iteration has grown since
  std::atomic<std::int64_t> iteration_;
  std::atomic<std::uint64_t> steps_{0};

  FeatureSet& features_;
  StatisticsEngine& statistics_;
  FeatureGuard& guard_;
  EventLog& events_;
  WarmUpNotes warm_up_;
  // Where a feature throws in a routing call that only observes.
  const LayerRouting::SwitchOff switch_off_ =
      [this](FeatureInstance& feature, std::string_view layer_name, std::string_view call) {
        guard_.switch_off(feature, layer_name, call);
      };

  // Over what follows and the states of all layers, which calls of an ended session may still make.
  static inline std::mutex layers_mutex_;
  int unnamed_layers_ = 0;
  bool warned_of_left_out_ = false;  // of step() alone
  SeenLayers seen_;
  // Of the running iteration, each once: the layer, and whether it has run in a training meanwhile.
  std::map<std::string, std::shared_ptr<std::atomic<bool>>> left_out_;
};

}  // namespace telens::debug
