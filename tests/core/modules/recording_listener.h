// A listener for tests of modules.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/hook_points.h"

namespace telens::test {

// Returns a fixed plan and records every call.
class RecordingListener final : public HookListener {
 public:
  using Modification = std::function<Operand(const ModifyTensorCall&)>;

  explicit RecordingListener(RoutingPlan plan, Modification modification = {})
      : plan_(plan), modification_(std::move(modification)) {
    hook_points::install(this, 0);
  }
  ~RecordingListener() override { hook_points::remove(this); }

  RoutingPlan route(LayerHooks&, const RoutingRequest&) override {
    ++routed;
    return plan_;
  }
  Operand modify_tensor(LayerHooks&, const RoutingPlan&, const ModifyTensorCall& call) override {
    note("modify", call.gemm, call.tensor_name);
    return modification_(call);
  }
  void inspect_tensor(LayerHooks&, const RoutingPlan&, const InspectTensorCall& call) override {
    calls.push_back("inspect " + std::string(get_name(call.tensor_name)));
    above_autograd += !c10::impl::tls_is_dispatch_keyset_excluded(c10::autograd_dispatch_keyset);
    if (inspected) inspected(call);
  }
  void inspect_tensor_postquantize(LayerHooks&, const RoutingPlan&,
                                   const InspectPostquantizeCall& call) override {
    note("postquantize", call.gemm, call.tensor_name);
  }
  void inspect_gemm(LayerHooks&, const RoutingPlan&, const InspectGemmCall& call) override {
    if (inspected_gemm) inspected_gemm(call);
  }

  std::function<void(const InspectTensorCall&)> inspected;
  std::function<void(const InspectGemmCall&)> inspected_gemm;
  std::vector<std::string> calls;
  int routed = 0;
  int above_autograd = 0;  // calls of inspect_tensor while autograd was active

 private:
  void note(const char* call, Gemm gemm, TensorName tensor) {
    calls.push_back(std::string(call) + " " + std::string(get_name(gemm)) + " " +
                    std::string(get_name(tensor)));
  }

  RoutingPlan plan_;
  Modification modification_;
};

}  // namespace telens::test
