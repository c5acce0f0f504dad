// Dispatches the calls of a layer to the features of its routing plan.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "core/hook_points.h"
#include "hooks/session/feature_set.h"
#include "hooks/session/observer_isolation.h"
#include "hooks/session/warm_up_notes.h"
#include "hooks/statistics_engine.h"

namespace telens::debug {

// Thread-safe.
class HookCalls {
 public:
  // All arguments outlive it.
  HookCalls(FeatureSet& features, StatisticsEngine& statistics, ObserverIsolation& isolation,
            EventLog& events)
      : features_(features), statistics_(statistics), isolation_(isolation), warm_up_(events) {}

  Operand modify_tensor(const RoutingPlan& plan, const ModifyTensorCall& call);
  void inspect_tensor(const RoutingPlan& plan, const InspectTensorCall& call);
  void inspect_tensor_postquantize(const RoutingPlan& plan, const InspectPostquantizeCall& call);
  void inspect_gemm(const RoutingPlan& plan, const InspectGemmCall& call);
  void inspect_attention(const RoutingPlan& plan, const InspectAttentionCall& call);

 private:
  DueReaders readers_when_due(const RoutingPlan& plan, TensorName tensor);

  FeatureSet& features_;
  StatisticsEngine& statistics_;
  ObserverIsolation& isolation_;
  WarmUpNotes warm_up_;
};

}  // namespace telens::debug
