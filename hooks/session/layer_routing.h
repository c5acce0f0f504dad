// A layer's state in a session: the features that watch it, when to ask each again, and their
// answers.
#pragma once

#include <array>
#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/layer_hooks.h"
#include "hooks/config/config.h"
#include "hooks/observer.h"
#include "hooks/sections.h"

namespace telens::debug {

// ---- the names of the layers that ran, used to detect likely mistakes in them

// Used under its owner's lock.
class LayerNameRegistry {
 public:
  // Held by a layer as long as it lives.
  using Presence = std::shared_ptr<const void>;

  struct Entered {
    Presence presence;
    bool is_shared;  // another live layer has the name
  };
  // Called when a layer runs for the first time.
  Entered enter(std::string_view name);
  // Called when a script passes tensors of a layer with this name.
  void enter_script(std::string_view name) { present_.try_emplace(std::string(name)); }

  bool any() const { return !present_.empty(); }

  // Returns a sentence for each section that selects none of them, although layers ran.
  std::vector<std::string> idle_sections(const config::Config& config) const;

 private:
  std::map<std::string, std::weak_ptr<const void>> present_;  // newest layer per name
};

// ---- routing

// A feature of the session: the instance of an entry of the configuration.
struct FeatureInstance {
  const config::FeatureEntry* entry;
  std::unique_ptr<Observer> feature;
  SectionState* section = nullptr;
  std::atomic<bool> observes{true};  // false once it failed while observing
  std::atomic<bool> told_of_randomness{false};

  // "feature 'FakeQuant' of section 'first'"
  std::string title() const;
  // True if it is not built in: it comes from a plugin or a Python class.
  bool is_foreign() const;
  // Returns true if its answers depend on the current limits of a budget.
  bool schedules_are_thinned() const;
  // Returns true if its observing calls are made in a forward of this kind (evaluation or
  // training). Classes that parse their own configuration are called in all forwards, as the
  // contract requires.
  bool looks_at(bool evaluation) const;
  // Returns true if the configuration selects one of an attention's own tensors for it, so that
  // attentions also ask it. A class that parses its own configuration is not asked.
  bool names_attention() const;
};

// The data of RoutingPlan::answers: which feature is on for which calls, in a forward-backward of a
// layer.
struct PlanAnswers {
  struct Part {
    FeatureInstance* feature = nullptr;
    std::uint32_t modify = 0;                 // bits as in RoutingPlan
    std::uint32_t postquantize = 0;           // bits as in RoutingPlan
    std::uint16_t inspect = 0;                // bits of tensors
    std::uint8_t gemms = 0;                   // bits of GEMMs
    bool attention = false;                   // inspect_attention
    mutable std::shared_ptr<void> kept = {};  // FeatureCall::kept

    bool on() const {
      return modify != 0 || postquantize != 0 || inspect != 0 || gemms != 0 || attention;
    }
  };

  std::string layer_name;
  ObservedLayer* observed = nullptr;  // LayerRouting::set_observed
  std::vector<Part> parts;
  std::vector<Alteration> alterations;
  bool left_out = false;  // a feature would have observed if its section's mode allowed it

  static const PlanAnswers& of(const RoutingPlan& plan) {
    return *static_cast<const PlanAnswers*>(plan.answers.get());
  }
};

// The state that a session keeps with a layer.
class LayerRouting final : public LayerState {
 public:
  // Called if a feature throws in a routing call that only observes.
  using SwitchOff = std::function<void(FeatureInstance& feature, std::string_view layer_name,
                                       std::string_view call)>;

  // `before`: the routing of the layer when other sections ran; unchanged features are not asked
  // earlier than they requested. nullptr if there is none.
  LayerRouting(std::uint64_t session, std::string layer_name, LayerKind kind,
               const std::vector<FeatureInstance*>& features, const LayerRouting* before = nullptr);

  // Returns the plan of a forward. Asks the features whose next_iteration has come. Throws
  // UsageError if two features modify the same tensor in the same GEMM. Any thread; no lock is held
  // while a feature is asked.
  RoutingPlan route(std::int64_t iteration, const RoutingRequest& request,
                    const SwitchOff& switch_off);

  // Returns the plan of a forward that becomes part of a graph, which keeps the plan: all calls
  // that observe, now or later, are on. Throws UsageError, naming the layer, the feature and its
  // section, for an alteration that does not stay on forever.
  RoutingPlan route_captured(std::int64_t iteration, const RoutingRequest& request,
                             const SwitchOff& switch_off);

  // Set by the first forward in the session that is not an evaluation.
  const std::shared_ptr<std::atomic<bool>>& has_trained() const { return has_trained_; }

  // Called after a route() that asked no feature and returned an empty plan. Returns the iteration
  // to wake up the layer in, for the same value of under_recipe; nullopt to stay awake; kNever if
  // not in this session.
  std::optional<std::int64_t> sleep_until(std::int64_t iteration, bool under_recipe) const;

  std::uint64_t session() const { return session_; }
  const std::string& layer_name() const { return layer_name_; }
  LayerKind kind() const { return kind_; }

  const std::vector<FeatureInstance*>& features() const { return features_; }

  // The layer's presence (LayerNameRegistry), shared by all its routings.
  const debug::LayerNameRegistry::Presence& presence() const { return presence_; }
  void set_presence(debug::LayerNameRegistry::Presence presence) {
    presence_ = std::move(presence);
  }

  // Sets the statistics engine's object for the layer, which the plans use.
  void set_observed(ObservedLayer& layer) { observed_ = &layer; }

  // Notes that other features of the layer belong to sections that do not run.
  void note_features_that_wait() { has_features_that_wait_ = true; }
  bool has_features_that_wait() const { return has_features_that_wait_; }

  // Returns true if a feature may request statistics in a graph, and this is the first call.
  bool claim_graph_memory() {
    return (has_features_that_wait_ || !features_.empty()) && !has_graph_memory_.exchange(true);
  }

  // Counts the forwards of the running iteration, which has this number; returns the count.
  int count_forward(std::uint64_t iteration);

  // Returns the bits of `bits` that were not claimed before; for messages that appear once.
  std::uint32_t claim_messages(std::uint32_t bits) { return bits & ~messages_.fetch_or(bits); }

  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

 private:
  enum class Call : std::uint8_t {
    fp8_gemm,
    modify,
    inspect,
    inspect_postquantize,
    inspect_gemm,
    inspect_attention
  };

  // One routing call to one feature, and its answer.
  struct Question {
    std::size_t feature;
    Call call;
    Gemm gemm;
    TensorName tensor;
    std::int64_t next = 0;    // the iteration to ask in
    std::int64_t asked = -1;  // the iteration it was last asked in
    bool enabled = false;     // the last answer
    bool for_ever = false;    // true for an alteration that holds in all later iterations

    std::int64_t counted = -1;       // the last counted iteration
    std::int64_t times_enabled = 0;  // iterations in which the feature returned enabled

    // A due iteration stays due for all of its micro-batches.
    bool due(std::int64_t iteration) const { return iteration >= next || iteration == asked; }
    bool on(std::int64_t iteration) const { return enabled && asked == iteration; }
    bool holds_high_precision(std::int64_t iteration) const {
      return call == Call::fp8_gemm && asked >= 0 && !enabled &&
             (iteration < next || asked == iteration);
    }
    bool may_alter() const { return call == Call::modify || call == Call::fp8_gemm; }
    bool is_in_plan(std::int64_t iteration) const {
      return call == Call::fp8_gemm ? holds_high_precision(iteration) : on(iteration);
    }
  };

  static std::string_view get_name(Call call);
  static bool answers(const RoutingCalls& calls, Call call);
  void take_over(const LayerRouting& before);
  static std::vector<Question> all_questions(LayerKind kind,
                                             const std::vector<FeatureInstance*>& features);
  static RoutingAnswer ask(Observer& feature, const Question& question, const FeatureCall& at);
  // Returns true if the budget skips this iteration, in which a feature with its own schedule is
  // enabled: every factor-th of these iterations is used. The feature is still asked, since only
  // the feature knows its schedule.
  static bool is_thinned_out(const FeatureInstance& instance, Question& question,
                             std::int64_t iteration);
  void ask_where_due(Question& question, std::int64_t iteration, const SwitchOff& switch_off) const;
  void enter(const Question& question, RoutingPlan& plan, PlanAnswers& answers) const;
  // Asks if the question is due, and enters the answers that `is_in_plan` accepts.
  using IsInPlan = std::function<bool(const Question& question)>;
  RoutingPlan make_plan(std::vector<Question>& questions, std::int64_t iteration,
                        const RoutingRequest& request, const SwitchOff& switch_off,
                        const IsInPlan& is_in_plan) const;
  void check_is_for_ever(const Question& question, std::int64_t iteration) const;

  const std::uint64_t session_;
  const std::string layer_name_;
  const LayerKind kind_;
  const std::vector<FeatureInstance*> features_;
  LayerNameRegistry::Presence presence_;
  ObservedLayer* observed_ = nullptr;
  bool has_features_that_wait_ = false;
  std::atomic<bool> has_graph_memory_{false};
  std::shared_ptr<std::atomic<bool>> has_trained_ = std::make_shared<std::atomic<bool>>(false);
  std::atomic<std::uint32_t> messages_{0};
  std::atomic<std::uint64_t> counted_iteration_{0};
  std::atomic<int> forwards_{0};

  mutable std::mutex mutex_;  // guards questions_
  std::vector<Question> questions_;
};

}  // namespace telens::debug
