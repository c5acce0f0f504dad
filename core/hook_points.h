// The calls that modules make to a debug session: routing calls and GEMM calls. Modules make no
// other calls to the outside.
//
// A layer (one linear operation with its three GEMMs, or one attention) owns a LayerHooks. It calls
// begin_forward() at the start of a forward. Without a debug session, or if no feature is due for
// the layer, the call costs one integer compare and returns nullptr: the layer runs its fused path.
// Otherwise the call returns the RoutingPlan of this forward; the layer runs unfused and makes
// exactly the calls whose bits are set. The backward of that forward uses the same plan.
//
// TELens adds two calls to the contract's three GEMM calls: inspect_gemm reports a GEMM's inputs,
// its output and the kernel that ran; inspect_attention reports the kernel that an attention ran
// with.
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

struct ModifyTensorCall {
  Gemm gemm;
  TensorName tensor_name;
  const at::Tensor& tensor;      // high precision, unmodified
  Quantizer* default_quantizer;  // nullptr outside fp8_autocast
  at::ScalarType dtype;          // dtype that the cast would have; for outputs, the tensor's dtype
  // Set for an update of the weight cache: the return value of modify_tensor for the weight's
  // earlier value, to fill in place.
  Operand* out = nullptr;

  // Returns the return value for a feature: `value`, copied into the storage of `out` if given. If
  // kind, shape or dtype differ, `out` becomes `value` itself.
  TELENS_EXPORT Operand deliver(Operand value) const;
};

struct InspectTensorCall {
  TensorName tensor_name;
  const at::Tensor* tensor;   // nullptr for weights that are stored in FP8
  const Operand* rowwise;     // operand of the first GEMM; nullptr for outputs
  const Operand* columnwise;  // operand of the second GEMM; nullptr for outputs
  Quantizer* quantizer;       // nullptr outside fp8_autocast and for outputs
  TensorParallel tensor_parallel;
  bool first_microbatch = true;    // false if a cached weight is reused
  const Recipe* recipe = nullptr;  // inputs: the recipe that the layer runs under; nullptr if none
  // Inputs: the delayed scaling that the layer's histories follow, from the recipe or from a custom
  // recipe's request; nullptr if none.
  const DelayedScaling* delayed = nullptr;
  const at::Tensor* bias = nullptr;  // output: the bias that fprop has added; nullptr if none
  // For inputs: modify_tensor created rowwise or columnwise, instead of the quantizer.
  bool rowwise_modified = false;
  bool columnwise_modified = false;
  bool evaluation = false;  // RoutingPlan::evaluation; set by the listener, for its features
  bool replicated = false;  // each rank of tensor_parallel has this whole tensor
  // Outputs: summed over the ranks of tensor_parallel; this rank's GEMM computed a partial sum.
  bool summed = false;
  // Set if the GEMMs read rows from every rank of tensor_parallel, in rank order and equally many
  // from each rank: the index at which the rows of `tensor` begin. nullopt if the GEMMs read only
  // these rows.
  std::optional<std::int64_t> first_row = std::nullopt;
  // Only for TensorName::scores, which has no `tensor`: the input of attention_statistics.
  const ops::AttentionScores* scores = nullptr;

  // Returns the delayed scaling that this tensor's scale follows; nullptr if none. `delayed` may
  // apply only to other tensors of the layer.
  const DelayedScaling* followed() const {
    return delayed != nullptr && follows_delayed() ? delayed : nullptr;
  }
  // Like followed(), when `delayed` is set.
  TELENS_EXPORT bool follows_delayed() const;
};

struct InspectPostquantizeCall {
  Gemm gemm;
  TensorName tensor_name;
  const Operand& tensor;  // the result of the cast or of modify_tensor
  bool rowwise;           // true if it feeds the tensor's first GEMM
  TensorParallel tensor_parallel;
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

// A GEMM that has just run.
struct InspectGemmCall {
  Gemm gemm;
  TensorName a_name;
  TensorName b_name;
  const Operand& a;
  const Operand& b;
  const at::Tensor& bias;    // fprop's; may be undefined
  const at::Tensor& output;  // before modify_tensor
  // The recipe if it quantizes; nullptr otherwise.
  const Recipe* recipe;
  const Quantizer* a_quantizer;
  const Quantizer* b_quantizer;
  bool split_accumulator;  // for quantized operands (MMParams)
  ops::GemmChoice choice;
  const GemmOverlapNote* overlap = nullptr;  // nullptr if the layer has not requested an overlap
};

// An attention that has just run.
struct InspectAttentionCall {
  const at::Tensor& query;  // [batch, heads, seq, size], in the dtype that the attention runs in
  const ops::AttentionChoice& choice;
};

// Answers the hook points: the debug session (hooks/). Core knows only this interface. Calls may
// come from any thread, several at a time; the implementation locks as needed. A call that must
// stop the run throws.
class HookListener {
 public:
  virtual ~HookListener() = default;

  // Returns the plan of this forward; may call layer.sleep_until(). An empty plan means the fused
  // path.
  virtual RoutingPlan route(LayerHooks& layer, const RoutingRequest& request) = 0;

  // Returns the tensor that replaces the given one. If call.out is set, the return value is
  // ignored.
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

  // Returns true if a feature may inspect or modify the product of the layer's wgrad, in any
  // iteration. The answer does not change while the listener is installed; nullopt if it is not
  // known yet.
  virtual std::optional<bool> may_watch_wgrad(LayerHooks& layer) { return true; }
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

  // Like sleep_until(), on a device with graphs (core/ops/capture.h): the layer is still asked
  // while a graph is captured, because the graph must contain the calls that become due later.
  void doze_until(std::uint64_t tick, const RoutingRequest& request) {
    dozes_until_[request.under_recipe].store(tick, std::memory_order_relaxed);
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
  std::array<std::atomic<std::uint64_t>, 2> dozes_until_{1, 1};
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
