// The part of the hook points that does not see tensors: routing plans, the tick of the session and
// a layer's side of the hook points. core/hook_points.h has the calls with tensors. No LibTorch.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/call_gate.h"
#include "core/base/error.h"
#include "core/base/names.h"
#include "core/base/torch_tensor.h"
#include "core/distributed/process_group.h"

namespace telens {

class HookListener;  // core/hook_points.h
class LayerHooks;

// The calls that are on in a forward-backward of a layer.
struct RoutingPlan {
  std::int64_t iteration = 0;
  std::uint32_t modify = 0;         // get_bit(gemm, tensor): modify_tensor
  std::uint32_t postquantize = 0;   // get_bit(gemm, tensor): inspect_tensor_postquantize
  std::uint16_t inspect = 0;        // get_bit(tensor): inspect_tensor
  std::uint8_t high_precision = 0;  // get_bit(gemm): fp8_gemm_enabled returned false
  std::uint8_t gemms = 0;           // get_bit(gemm): inspect_gemm
  bool attention = false;           // inspect_attention

  // Only for tensors of a linear layer.
  static constexpr std::uint32_t get_bit(Gemm gemm, TensorName tensor) {
    return 1U << (static_cast<unsigned>(gemm) * kLinearTensors.size() +
                  static_cast<unsigned>(tensor));
  }
  static constexpr std::uint16_t get_bit(TensorName tensor) {
    return static_cast<std::uint16_t>(1U << static_cast<unsigned>(tensor));
  }
  static constexpr std::uint8_t get_bit(Gemm gemm) {
    return static_cast<std::uint8_t>(1U << static_cast<unsigned>(gemm));
  }

  bool modifies(Gemm gemm, TensorName tensor) const { return modify & get_bit(gemm, tensor); }
  bool inspects(TensorName tensor) const { return inspect & get_bit(tensor); }
  bool inspects_quantized(Gemm gemm, TensorName tensor) const {
    return postquantize & get_bit(gemm, tensor);
  }
  bool runs_in_high_precision(Gemm gemm) const { return high_precision & get_bit(gemm); }
  bool inspects(Gemm gemm) const { return gemms & get_bit(gemm); }
  bool empty() const {
    return modify == 0 && postquantize == 0 && inspect == 0 && high_precision == 0 && gemms == 0 &&
           !attention;
  }

  bool evaluation = false;  // RoutingRequest::evaluation

  // The session that made the plan; a backward after the end of that session makes no calls.
  std::uint64_t session = 0;

  std::shared_ptr<const void> answers = {};  // the listener's own data: each feature's answers
};

// A layer's request for a routing plan.
struct RoutingRequest {
  bool under_recipe = false;  // inside fp8_autocast with enabled=True
  // For code that watches its own layers: also ask fp8_gemm_enabled for GEMMs whose operands are
  // all modified, since such code needs the answer itself. A layer does not need it in that case.
  bool asks_of_modified_gemms = false;
  // Any tensor on the layer's device; used to check if a graph is being captured. nullptr if none
  // is.
  const at::Tensor* like = nullptr;
  // True for a forward of a module in eval mode outside of training; LinearLayer determines it.
  bool evaluation = false;
  // The module's own mode. A training may also run in eval mode.
  bool training_mode = true;
};

// The tensor-parallel group that a layer was given. Statistics of weights are reduced over it.
struct TensorParallel {
  c10d::ProcessGroup* group = nullptr;
  std::int64_t size = 1;
};

// The overlap of a layer's GEMM when nothing watches it (Userbuffers).
struct GemmOverlapNote {
  std::string_view method;      // "ring_exchange"
  std::string_view collective;  // "all-gather of the activation"
  std::int64_t parts = 1;       // number of parts that it is split into
  std::int64_t bytes = 0;       // number of bytes that this rank sends
  // reason why it runs in one part, after or before the collective; or ""
  std::string_view hindrance;
};

// The state of the hook points. A tick is (session number << 40 | iteration). It is 0 without a
// session and never falls below any tick of an earlier session. A layer that sleeps indefinitely
// therefore wakes up in the next session at the latest, and a model may outlive a session.
namespace hook_points {

inline constexpr int kIterationBits = 40;
inline constexpr std::int64_t kLastIteration = (std::int64_t{1} << kIterationBits) - 1;

constexpr std::uint64_t make_tick(std::uint64_t session, std::int64_t iteration) {
  return session << kIterationBits | static_cast<std::uint64_t>(iteration);
}

// The current tick; written by the session at step(), read by every forward.
extern TELENS_EXPORT std::atomic<std::uint64_t> current_tick;

// Installs the listener, or reinstalls the current one; returns the number of the session that
// begins, counted from 1. Sets current_tick to its iteration. Every call shares the owner, which
// keeps the listener's data alive; if it is null, the listener outlives all calls.
TELENS_EXPORT std::uint64_t install(HookListener* listener, std::int64_t iteration,
                                    std::shared_ptr<void> owner = nullptr);
TELENS_EXPORT void set_iteration(std::int64_t iteration);

// Removes the listener if it is the installed one: no call begins after this, and current_tick is
// 0. Returns a handle to wait for the calls that other threads are still in.
TELENS_EXPORT CallGate::Closed remove(const HookListener* listener);

// Registers fork handlers that leave the listener to the parent process: a forked child has none.
// One call is enough.
TELENS_EXPORT void prepare_forks();

// Gives the installed listener a larger number, and returns it: sleeping layers are asked again,
// and the listener keeps serving the plans that it has made since install().
TELENS_EXPORT std::uint64_t renew(std::int64_t iteration);

// A call into the listener of the session that made the plan; converts to false if that session has
// ended. The listener and its data live at least as long as the call.
class TELENS_EXPORT ListenerCall {
 public:
  explicit ListenerCall(const RoutingPlan& plan);

  explicit operator bool() const { return listener_ != nullptr; }
  HookListener* operator->() const { return listener_; }
  HookListener& operator*() const { return *listener_; }

 private:
  CallGate::Call call_;
  HookListener* listener_;
};

}  // namespace hook_points

// The hook side's own state of a layer (resolved features, schedules), stored with the layer to
// avoid a lookup. Created by the listener; shared by the layer and the calls that use it.
class LayerState {
 public:
  virtual ~LayerState() = default;
};

// Linear layers have the tensors kLinearTensors and all calls except inspect_attention. Attentions
// have the tensors kAttentionTensors and the calls inspect_tensor and inspect_attention.
enum class LayerKind : std::uint8_t { linear, attention };

// A layer's side of the hook points.
class TELENS_EXPORT LayerHooks {
 public:
  // A session names a layer with an empty name "Layer_<n>", counting n from 1 in the order of first
  // forwards, and an attention "Attention_<n>"; name() stays empty.
  explicit LayerHooks(std::string name = {}, LayerKind kind = LayerKind::linear);

  LayerKind kind() const { return kind_; }

  // Names an unnamed layer "Layer_<n><suffix>", with the same n as `first`: a module with several
  // layers counts as one.
  void share_automatic_name(const LayerHooks& first, std::string suffix);

  const std::string& name() const { return name_; }
  void set_name(std::string name);

  // Returns the plan of this forward, or nullptr for the fused path.
  std::shared_ptr<const RoutingPlan> begin_forward(const RoutingRequest& request) {
    if (sleeps(request)) [[likely]] {
      return nullptr;
    }
    return ask(request);
  }

  // Returns true if the listener is not asked, even during a capture.
  bool sleeps(const RoutingRequest& request) const {
    return hook_points::current_tick.load(std::memory_order_relaxed) <
           asleep_until_[request.under_recipe].load(std::memory_order_relaxed);
  }

  // For the listener: does not ask the layer again before this tick. A layer sleeps separately
  // inside and outside of recipes, because fp8_gemm_enabled only has a meaning under a recipe.
  void sleep_until(std::uint64_t tick, const RoutingRequest& request) {
    asleep_until_[request.under_recipe].store(tick, std::memory_order_relaxed);
  }

  // Like sleep_until(), on a device with graphs (core/ops/device.h): the layer is still asked
  // while a graph is captured, because the graph must contain the calls that become due later.
  void skip_eager_until(std::uint64_t tick, const RoutingRequest& request) {
    skips_eager_until_[request.under_recipe].store(tick, std::memory_order_relaxed);
  }

  // HookListener::may_watch_wgrad, cached once it is known in a session. Returns true while it is
  // unknown and false without a session. Any thread.
  bool may_watch_wgrad();

  // The layer's group, for its calls. `size` may be larger than 1 before the group is set.
  TensorParallel tensor_parallel() const { return {tp_group_.get(), tp_size_}; }
  void set_tensor_parallel(ProcessGroupPtr group, std::int64_t size) {
    tp_group_ = std::move(group);
    tp_size_ = size;
  }

  // Used by the listener, under its own lock.
  std::shared_ptr<LayerState>& state() { return state_; }

  // For the listener: the "Layer_<n>" name that it assigned, and the session that assigned it.
  struct AutomaticName {
    std::uint64_t session = 0;
    std::string name;
  };
  AutomaticName& automatic_name() { return *automatic_name_; }
  const std::string& automatic_suffix() const { return automatic_suffix_; }

 private:
  std::shared_ptr<const RoutingPlan> ask(const RoutingRequest& request);

  // Indexed by under_recipe. The first tick of any session is larger than 1. Atomic: threads may
  // share a layer.
  std::array<std::atomic<std::uint64_t>, 2> asleep_until_{1, 1};
  std::array<std::atomic<std::uint64_t>, 2> skips_eager_until_{1, 1};
  // Last answer of may_watch_wgrad: twice the session's number, plus 1 for true; 0 if never asked.
  std::atomic<std::uint64_t> wgrad_answer_{0};
  ProcessGroupPtr tp_group_;
  std::int64_t tp_size_ = 1;
  LayerKind kind_;
  std::string name_;
  std::shared_ptr<AutomaticName> automatic_name_ = std::make_shared<AutomaticName>();
  std::string automatic_suffix_;
  std::shared_ptr<LayerState> state_;
};

}  // namespace telens
