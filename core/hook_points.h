// The only thing through which modules call out: routing calls and GEMM calls.
//
// A layer (one linear operation with its three GEMMs, or one attention) owns a LayerHooks. At the
// start of a forward it calls begin_forward(). Without a debug session, or while no feature is due
// for the layer, that is one integer compare and the answer is nullptr: the layer runs its fused
// path. Otherwise the answer is the RoutingPlan of this forward; the layer runs unfused and makes
// just the calls whose bits are set. The backward of that forward uses the same plan.
//
// Beside the contract's three GEMM calls there are two of our own: inspect_gemm, what a GEMM got,
// what came out, and which kernel ran; inspect_attention, which kernel an attention ran with.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/base/call_gate.h"
#include "core/base/error.h"
#include "core/base/names.h"
#include "core/distributed/process_group.h"
#include "core/ops/gemm_choice.h"
#include "core/quantization/quantized_tensor.h"
#include "core/quantization/quantizer.h"

namespace telens {

class LayerHooks;
class Recipe;
struct DelayedScaling;

namespace ops {
struct AttentionChoice;  // core/ops/attention_choice.h
struct AttentionScores;  // core/ops/attention_statistics.h
}  // namespace ops

// The calls that are on in one forward-backward of one layer.
struct RoutingPlan {
  std::int64_t iteration = 0;
  std::uint32_t modify = 0;         // get_bit(gemm, tensor): modify_tensor
  std::uint32_t postquantize = 0;   // get_bit(gemm, tensor): inspect_tensor_postquantize
  std::uint16_t inspect = 0;        // get_bit(tensor): inspect_tensor
  std::uint8_t high_precision = 0;  // get_bit(gemm): fp8_gemm_enabled answered false
  std::uint8_t gemms = 0;           // get_bit(gemm): inspect_gemm
  bool attention = false;           // inspect_attention

  // Tensors of a linear layer alone.
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

  std::shared_ptr<const void> answers = {};  // the listener's own: which feature answered what
};

// Sent by a layer with its request for a routing plan.
struct RoutingRequest {
  bool under_recipe = false;  // inside fp8_autocast with enabled=True
  // For code that watches its own layers: fp8_gemm_enabled is asked of GEMMs whose operands are all
  // modified too, since that code wants the answer itself. A layer has no use for it there.
  bool asks_of_modified_gemms = false;
  // Any tensor of the device that the layer runs on: it tells whether a graph is captured. nullptr:
  // none is.
  const at::Tensor* like = nullptr;
  // The forward of a module in eval mode that is no part of a training: LinearLayer tells.
  bool evaluation = false;
  // The module's own mode. A training may run in eval mode, too.
  bool training_mode = true;
};

// The tensor-parallel group that a layer was given; a weight's statistics are reduced over it.
struct TensorParallel {
  c10d::ProcessGroup* group = nullptr;
  std::int64_t size = 1;
};

struct ModifyTensorCall {
  Gemm gemm;
  TensorName tensor_name;
  const at::Tensor& tensor;      // high precision, as it came
  Quantizer* default_quantizer;  // nullptr outside fp8_autocast
  at::ScalarType dtype;          // that the cast would have had; the tensor's for outputs
  // An update of the weight cache: what modify_tensor returned for the weight's earlier value, to
  // be filled in place.
  Operand* out = nullptr;

  // The return value of a feature: `value`, copied into the storage of `out` if given. Where kind,
  // shape or dtype of the two differ, `out` becomes `value` itself.
  TELENS_EXPORT Operand deliver(Operand value) const;
};

struct InspectTensorCall {
  TensorName tensor_name;
  const at::Tensor* tensor;   // nullptr for weights that are stored in FP8
  const Operand* rowwise;     // operand of the first GEMM; nullptr for outputs
  const Operand* columnwise;  // operand of the second GEMM; nullptr for outputs
  Quantizer* quantizer;       // nullptr outside fp8_autocast and for outputs
  TensorParallel tensor_parallel;
  bool first_microbatch = true;    // false where a cached weight is used again
  const Recipe* recipe = nullptr;  // inputs: the recipe that the layer runs under; nullptr: none
  // Inputs: what the layer's histories follow, the recipe or a custom one's request; nullptr: none.
  const DelayedScaling* delayed = nullptr;
  const at::Tensor* bias = nullptr;  // output: the bias that fprop has added; nullptr: none
  // For inputs: modify_tensor made rowwise or columnwise, in place of the quantizer.
  bool rowwise_modified = false;
  bool columnwise_modified = false;
  bool evaluation = false;  // RoutingPlan::evaluation; set by the listener, for its features
  bool replicated = false;  // each rank of tensor_parallel has this tensor, whole
  // Outputs: ranks of tensor_parallel have added it up; this rank's GEMM made a part.
  bool summed = false;
  // The GEMMs take rows of all ranks of tensor_parallel, in the order of ranks and as many of each:
  // where those of `tensor` begin. nullopt: they take these alone.
  std::optional<std::int64_t> first_row = std::nullopt;
  // TensorName::scores alone, which has no `tensor`: what attention_statistics reads.
  const ops::AttentionScores* scores = nullptr;

  // The delayed scaling that this tensor's scale follows; nullptr: none. `delayed` may concern
  // other tensors of the layer alone.
  const DelayedScaling* followed() const {
    return delayed != nullptr && follows_delayed() ? delayed : nullptr;
  }
  // The same, where `delayed` is one.
  TELENS_EXPORT bool follows_delayed() const;
};

struct InspectPostquantizeCall {
  Gemm gemm;
  TensorName tensor_name;
  const Operand& tensor;  // the result of the cast or of modify_tensor
  bool rowwise;           // true: it feeds the first GEMM of the tensor
  TensorParallel tensor_parallel;
};

// The overlap of a layer's GEMM where nothing watches it (Userbuffers).
struct GemmOverlapNote {
  std::string_view method;      // "ring_exchange"
  std::string_view collective;  // "all-gather of the activation"
  std::int64_t parts = 1;       // that it is cut into
  std::int64_t bytes = 0;       // that this rank sends
  std::string_view hindrance;   // why it runs in one part, after or before the collective; or ""
};

// A GEMM that has just run.
struct InspectGemmCall {
  Gemm gemm;
  TensorName a_name;
  TensorName b_name;
  const Operand& a;
  const Operand& b;
  const at::Tensor& bias;    // fprop's; may be undefined
  const at::Tensor& output;  // before modify_tensor
  // Under a recipe that quantizes; nullptr otherwise.
  const Recipe* recipe;
  const Quantizer* a_quantizer;
  const Quantizer* b_quantizer;
  bool split_accumulator;  // for quantized operands (MMParams)
  ops::GemmChoice choice;
  const GemmOverlapNote* overlap = nullptr;  // nullptr: the layer has asked for none
};

// An attention that has just run.
struct InspectAttentionCall {
  const at::Tensor& query;  // [batch, heads, seq, size], in the dtype that the attention takes
  const ops::AttentionChoice& choice;
};

// Answers the hook points: the debug session (hooks/). Core knows this interface alone. Calls may
// come from any thread, several at a time; the implementation locks where it must. A call that must
// stop the run throws.
class HookListener {
 public:
  virtual ~HookListener() = default;

  // The plan of this forward; may call layer.sleep_until(). An empty plan means the fused path.
  virtual RoutingPlan route(LayerHooks& layer, const RoutingRequest& request) = 0;

  // Returns the tensor that takes the place of the given one; with call.out nothing of use.
  virtual Operand modify_tensor(LayerHooks& layer, const RoutingPlan& plan,
                                const ModifyTensorCall& call) = 0;
  virtual void inspect_tensor(LayerHooks& layer, const RoutingPlan& plan,
                              const InspectTensorCall& call) = 0;
  virtual void inspect_tensor_postquantize(LayerHooks& layer, const RoutingPlan& plan,
                                           const InspectPostquantizeCall& call) = 0;
  virtual void inspect_gemm(LayerHooks& layer, const RoutingPlan& plan,
                            const InspectGemmCall& call) = 0;
  virtual void inspect_attention(LayerHooks& layer, const RoutingPlan& plan,
                                 const InspectAttentionCall& call) {}

  // True if a feature may inspect or modify the product of the layer's wgrad, in any iteration.
  // The answer is the same for as long as the listener is installed; nullopt: it is not known yet.
  virtual std::optional<bool> may_watch_wgrad(LayerHooks& layer) { return true; }
};

// The state of the hook points. A tick is (session number << 40 | iteration): 0 without a session,
// and it never falls below any tick of an earlier session, so a layer that sleeps "for good" sleeps
// until the next session at the latest, and a model may outlive a session.
namespace hook_points {

inline constexpr int kIterationBits = 40;
inline constexpr std::int64_t kLastIteration = (std::int64_t{1} << kIterationBits) - 1;

constexpr std::uint64_t make_tick(std::uint64_t session, std::int64_t iteration) {
  return session << kIterationBits | static_cast<std::uint64_t>(iteration);
}

// The present tick; written by the session at step(), read by every forward.
extern TELENS_EXPORT std::atomic<std::uint64_t> current_tick;

// Installs the listener, or anew the one that is there; returns the number of the session that
// begins, counted from 1. Sets current_tick to its iteration. Every call shares the owner, which
// keeps alive what the listener uses; null: the listener outlives all calls.
TELENS_EXPORT std::uint64_t install(HookListener* listener, std::int64_t iteration,
                                    std::shared_ptr<void> owner = nullptr);
TELENS_EXPORT void set_iteration(std::int64_t iteration);

// Removes the listener, if it is the installed one: no call begins from here on, current_tick is 0.
// Returns what can be asked to wait for the calls of other threads that are under way.
TELENS_EXPORT CallGate::Closed remove(const HookListener* listener);

// Leaves the listener to the parent of a process that forks: the child has none. Once is enough.
TELENS_EXPORT void prepare_forks();

// The installed listener goes on under a larger number, which is returned: layers that sleep are
// asked again, and it stays the listener of the plans that it has made since install().
TELENS_EXPORT std::uint64_t renew(std::int64_t iteration);

// A call into the listener of the session that made the plan; false if that has ended since. The
// listener and what it uses live at least as long.
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

// The hook side's own state of a layer (resolved features, schedules), kept with the layer so that
// no look-up is needed. Made by the listener; shared by the layer and the calls that use it.
class LayerState {
 public:
  virtual ~LayerState() = default;
};

// Linear layers have the tensors kLinearTensors and all calls but inspect_attention, attentions
// kAttentionTensors, inspect_tensor and inspect_attention.
enum class LayerKind : std::uint8_t { linear, attention };

// A layer's end of the hook points.
class TELENS_EXPORT LayerHooks {
 public:
  // A layer with an empty name is called "Layer_<n>" by a session, n from 1 in the order of first
  // forwards, an attention "Attention_<n>"; name() stays empty.
  explicit LayerHooks(std::string name = {}, LayerKind kind = LayerKind::linear);

  LayerKind kind() const { return kind_; }

  // Without a name the layer is "Layer_<n><suffix>", with the same n as `first`: modules with
  // several layers count as one.
  void share_automatic_name(const LayerHooks& first, std::string suffix);

  const std::string& name() const { return name_; }
  void set_name(std::string name);

  // The plan of this forward, or nullptr for the fused path.
  std::shared_ptr<const RoutingPlan> begin_forward(const RoutingRequest& request) {
    if (sleeps(request)) [[likely]] {
      return nullptr;
    }
    return ask(request);
  }

  // True if the listener is not asked, whatever is captured.
  bool sleeps(const RoutingRequest& request) const {
    return hook_points::current_tick.load(std::memory_order_relaxed) <
           asleep_until_[request.under_recipe].load(std::memory_order_relaxed);
  }

  // For the listener: the layer is not asked again before this tick. A layer sleeps inside and
  // outside of recipes on its own: fp8_gemm_enabled has a meaning under a recipe only.
  void sleep_until(std::uint64_t tick, const RoutingRequest& request) {
    asleep_until_[request.under_recipe].store(tick, std::memory_order_relaxed);
  }

  // The same on a device with graphs (core/ops/capture.h): while one is captured the layer is asked
  // all the same, since what will be due later has to be in the graph.
  void doze_until(std::uint64_t tick, const RoutingRequest& request) {
    dozes_until_[request.under_recipe].store(tick, std::memory_order_relaxed);
  }

  // HookListener::may_watch_wgrad, asked until it is known in a session and true as long as it is
  // not; false without a session. Any thread.
  bool may_watch_wgrad();

  // The layer's group, for its calls. `size` may be larger than 1 before there is a group.
  TensorParallel tensor_parallel() const { return {tp_group_.get(), tp_size_}; }
  void set_tensor_parallel(ProcessGroupPtr group, std::int64_t size) {
    tp_group_ = std::move(group);
    tp_size_ = size;
  }

  // Used by the listener, under a lock of its own.
  std::shared_ptr<LayerState>& state() { return state_; }

  // For the listener: the "Layer_<n>" that it gave, and in which session.
  struct AutomaticName {
    std::uint64_t session = 0;
    std::string name;
  };
  AutomaticName& automatic_name() { return *automatic_name_; }
  const std::string& automatic_suffix() const { return automatic_suffix_; }

 private:
  std::shared_ptr<const RoutingPlan> ask(const RoutingRequest& request);

  // By under_recipe. The first tick of any session is larger than 1. Atomic: threads may share a
  // layer.
  std::array<std::atomic<std::uint64_t>, 2> asleep_until_{1, 1};
  std::array<std::atomic<std::uint64_t>, 2> dozes_until_{1, 1};
  // may_watch_wgrad's last answer: the session's number twice, and 1 for true; 0: never asked.
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
