// The state of one layer in a session: the features that have it, when each wants to be asked
// again, and their answers.
#pragma once

#include <array>
#include <atomic>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/hook_points.h"
#include "hooks/feature.h"
#include "hooks/section_switches.h"
#include "hooks/session/layer_name_registry.h"

namespace telens::debug {

// A feature of the session: the instance of one entry of the configuration.
struct FeatureInstance {
  const config::FeatureEntry* entry;
  std::unique_ptr<Feature> feature;
  SectionState* section = nullptr;
  std::atomic<bool> observes{true};  // false once it failed while observing
  std::atomic<bool> told_of_randomness{false};

  // "feature 'FakeQuant' of section 'first'"
  std::string title() const;
  // True if it is not built in: it comes from a plugin or a Python class.
  bool is_foreign() const;
  // True if its answers depend on what a budget allows at the moment.
  bool schedules_are_thinned() const;
  // True if its observing calls are made in such a forward. Classes that parse their own
  // configuration are called in all of them, as the contract has it.
  bool looks_at(bool evaluation) const;
  // True if the configuration selects one of an attention's own tensors for it, so that attentions
  // ask it too. A class that parses its own configuration is not asked.
  bool names_attention() const;
};

// Behind RoutingPlan::answers: which feature is on where, in one forward-backward of one layer.
struct PlanAnswers {
  struct Part {
    FeatureInstance* feature = nullptr;
    std::uint32_t modify = 0;                 // bits as in RoutingPlan
    std::uint32_t postquantize = 0;           // the same
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
  bool left_out = false;  // a feature would have looked on, but for its section's mode

  static const PlanAnswers& of(const RoutingPlan& plan) {
    return *static_cast<const PlanAnswers*>(plan.answers.get());
  }
};

// The state that a session keeps with a layer.
class LayerRouting final : public LayerState {
 public:
  // Called where a feature throws in a routing call that only observes.
  using SwitchOff = std::function<void(FeatureInstance& feature, std::string_view layer_name,
                                       std::string_view call)>;

  // `before`: what was known of the layer when other sections ran; features that are the same are
  // not asked sooner than they wanted to be. nullptr: nothing.
  LayerRouting(std::uint64_t session, std::string layer_name, LayerKind kind,
               const std::vector<FeatureInstance*>& features, const LayerRouting* before = nullptr);

  // The plan of a forward. Asks the features whose next_iteration has come. Throws UsageError where
  // two features want to modify the same tensor in the same GEMM. Any thread; no lock is held
  // while a feature is asked.
  RoutingPlan route(std::int64_t iteration, const RoutingRequest& request,
                    const SwitchOff& switch_off);

  // The plan of a forward that becomes part of a graph, which keeps it: everything that observes,
  // now or later, is on. Throws UsageError, naming the layer, the feature and its section, for what
  // alters and is not for ever as it is now.
  RoutingPlan route_captured(std::int64_t iteration, const RoutingRequest& request,
                             const SwitchOff& switch_off);

  // Set by the first forward in the session that is no evaluation.
  const std::shared_ptr<std::atomic<bool>>& has_trained() const { return has_trained_; }

  // After a route() that asked no feature and came out empty: the iteration to wake the layer in,
  // if it runs under a recipe again or not; nullopt: stay awake. kNever: not in this session.
  std::optional<std::int64_t> sleep_until(std::int64_t iteration, bool under_recipe) const;

  std::uint64_t session() const { return session_; }
  const std::string& layer_name() const { return layer_name_; }
  LayerKind kind() const { return kind_; }

  const std::vector<FeatureInstance*>& features() const { return features_; }

  // The layer's (LayerNameRegistry), the same for all its routings.
  const debug::LayerNameRegistry::Presence& presence() const { return presence_; }
  void set_presence(debug::LayerNameRegistry::Presence presence) {
    presence_ = std::move(presence);
  }

  // The layer as the statistics engine keeps it, for the plans.
  void set_observed(ObservedLayer& layer) { observed_ = &layer; }

  // Others of the layer's features belong to sections that do not run.
  void note_features_that_wait() { has_features_that_wait_ = true; }
  bool has_features_that_wait() const { return has_features_that_wait_; }

  // True if a feature may ask for statistics in a graph, and this is the first call.
  bool claim_graph_memory() {
    return (has_features_that_wait_ || !features_.empty()) && !has_graph_memory_.exchange(true);
  }

  // Counts the forwards of the running iteration, the one of this number; returns how many.
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

  // One routing call to one feature, and what became of it.
  struct Question {
    std::size_t feature;
    Call call;
    Gemm gemm;
    TensorName tensor;
    std::int64_t next = 0;    // the iteration to ask in
    std::int64_t asked = -1;  // the iteration it was asked in last
    bool enabled = false;     // the answer then
    bool for_ever = false;    // an alteration that holds in all later iterations

    std::int64_t counted = -1;       // the last iteration that counts in
    std::int64_t times_enabled = 0;  // iterations in which the feature said that it is enabled

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
  static RoutingAnswer ask(Feature& feature, const Question& question, const FeatureCall& at);
  // True if the budget lets this iteration, in which a feature with a schedule of its own says that
  // it is enabled, pass: of these iterations every factor-th is taken. The feature is asked as
  // ever, since it alone knows when it wants to run.
  static bool is_thinned_out(const FeatureInstance& instance, Question& question,
                             std::int64_t iteration);
  void ask_where_due(Question& question, std::int64_t iteration, const SwitchOff& switch_off) const;
  void enter(const Question& question, RoutingPlan& plan, PlanAnswers& answers) const;
  // Asks where it is time to, and enters what `is_in_plan` says is on.
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

  mutable std::mutex mutex_;  // over questions_
  std::vector<Question> questions_;
};

}  // namespace telens::debug
