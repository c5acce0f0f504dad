#include "hooks/session/layer_routing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "hooks/observer.h"

namespace telens::debug {

// ---- names of layers

namespace {

constexpr std::size_t kMostNames = 5;  // in an example

}  // namespace

LayerNameRegistry::Entered LayerNameRegistry::enter(std::string_view name) {
  std::weak_ptr<const void>& last = present_[std::string(name)];
  const bool is_shared = !last.expired();
  Presence presence = std::make_shared<char>();
  last = presence;
  return {std::move(presence), is_shared};
}

std::vector<std::string> LayerNameRegistry::idle_sections(const config::Config& config) const {
  std::vector<std::string> sentences;
  if (present_.empty()) return sentences;
  std::vector<std::string_view> names;
  for (const auto& [name, present] : present_) {
    if (names.size() < kMostNames) names.push_back(name);
  }
  const std::size_t others = present_.size() - names.size();
  for (const config::Section& section : config.sections()) {
    if (std::ranges::any_of(present_,
                            [&](const auto& each) { return section.layers.selects(each.first); })) {
      continue;
    }
    sentences.push_back(
        fmt::format("section '{}' selects none of the layers that ran: {}{}; `telens plan` shows "
                    "the layers of a section",
                    section.name, fmt::join(names, ", "),
                    others > 0 ? fmt::format(" and {} more", others) : ""));
  }
  return sentences;
}

// ---- routing

namespace {

// fp8_gemm_enabled concerns the operands of a GEMM that no feature modifies.
bool modifies_both_operands(const RoutingPlan& plan, Gemm gemm) {
  return std::ranges::all_of(kLinearTensors, [&](TensorName tensor) {
    return !is_gemm_input(tensor) || !belongs_to(tensor, gemm) || plan.modifies(gemm, tensor);
  });
}

bool is_asked(Gemm gemm, const RoutingPlan& plan, const RoutingRequest& request) {
  return request.under_recipe &&
         (request.asks_of_modified_gemms || !modifies_both_operands(plan, gemm));
}

}  // namespace

std::string FeatureInstance::title() const {
  return fmt::format("feature '{}' of section '{}'", entry->written_name, entry->section);
}

bool FeatureInstance::is_foreign() const {
  static const std::string kBuiltIn = config::FeatureDescription().owner;
  return entry->description->owner != kBuiltIn;
}

bool FeatureInstance::schedules_are_thinned() const {
  return section->budget() != nullptr && feature->follows_schedules();
}

bool FeatureInstance::looks_at(bool evaluation) const {
  return entry->description->opaque || entry->keys->looks_at(evaluation);
}

bool FeatureInstance::names_attention() const {
  return feature->looks_at_attention() ||
         std::ranges::any_of(entry->selections, [](const config::Selection& selection) {
           const auto tensor =
               selection.tensor ? tensor_from_name(*selection.tensor) : std::nullopt;
           return tensor && is_of_attention(*tensor);
         });
}

LayerRouting::LayerRouting(std::uint64_t session, std::string layer_name, LayerKind kind,
                           const std::vector<FeatureInstance*>& features,
                           const LayerRouting* before)
    : session_(session),
      layer_name_(std::move(layer_name)),
      kind_(kind),
      features_(features),
      questions_(all_questions(kind, features)) {
  if (before != nullptr) take_over(*before);
}

void LayerRouting::take_over(const LayerRouting& before) {
  messages_ = before.messages_.load();
  has_graph_memory_ = before.has_graph_memory_.load();
  has_trained_ = before.has_trained_;
  observed_ = before.observed_;
  const std::lock_guard lock(before.mutex_);
  for (Question& question : questions_) {
    const auto same = std::ranges::find_if(before.questions_, [&](const Question& other) {
      return before.features_[other.feature] == features_[question.feature] &&
             !features_[question.feature]->schedules_are_thinned() && other.call == question.call &&
             other.gemm == question.gemm && other.tensor == question.tensor;
    });
    if (same == before.questions_.end()) continue;
    question.next = same->next;
    question.asked = same->asked;
    question.enabled = same->enabled;
    question.for_ever = same->for_ever;
    question.counted = same->counted;
    question.times_enabled = same->times_enabled;
  }
}

// fp8_gemm comes last: it is only asked if no feature modifies an operand.
std::vector<LayerRouting::Question> LayerRouting::all_questions(
    LayerKind kind, const std::vector<FeatureInstance*>& features) {
  std::vector<Question> questions;
  const auto add = [&](Call call, Gemm gemm, TensorName tensor) {
    for (std::size_t i = 0; i < features.size(); ++i) {
      if (answers(features[i]->feature->routing_calls(), call)) {
        questions.push_back({i, call, gemm, tensor});
      }
    }
  };
  if (kind == LayerKind::attention) {
    for (const TensorName tensor : kAttentionTensors) add(Call::inspect, Gemm::fprop, tensor);
    add(Call::inspect_attention, Gemm::fprop, TensorName::query);
    return questions;
  }
  for (const TensorName tensor : kLinearTensors) {
    add(Call::inspect, get_gemms(tensor).first, tensor);
    for (const Gemm gemm : kAllGemms) {
      if (!belongs_to(tensor, gemm)) continue;
      add(Call::modify, gemm, tensor);
      if (is_gemm_input(tensor)) add(Call::inspect_postquantize, gemm, tensor);
    }
  }
  for (const Gemm gemm : kAllGemms) add(Call::inspect_gemm, gemm, TensorName::activation);
  for (const Gemm gemm : kAllGemms) add(Call::fp8_gemm, gemm, TensorName::activation);
  return questions;
}

bool LayerRouting::answers(const RoutingCalls& calls, Call call) {
  switch (call) {
    case Call::fp8_gemm:
      return calls.fp8_gemm;
    case Call::modify:
      return calls.modify;
    case Call::inspect:
      return calls.inspect;
    case Call::inspect_gemm:
      return calls.inspect_gemm;
    case Call::inspect_attention:
      return calls.inspect_attention;
    case Call::inspect_postquantize:
      break;
  }
  return calls.inspect_postquantize;
}

std::string_view LayerRouting::get_name(Call call) {
  switch (call) {
    case Call::fp8_gemm:
      return "fp8_gemm_enabled";
    case Call::modify:
      return "modify_tensor_enabled";
    case Call::inspect:
      return "inspect_tensor_enabled";
    case Call::inspect_gemm:
      return "inspect_gemm_enabled";
    case Call::inspect_attention:
      return "inspect_attention_enabled";
    case Call::inspect_postquantize:
      break;
  }
  return "inspect_tensor_postquantize_enabled";
}

RoutingAnswer LayerRouting::ask(Observer& feature, const Question& question,
                                const FeatureCall& at) {
  switch (question.call) {
    case Call::fp8_gemm:
      return feature.fp8_gemm_enabled(at, question.gemm);
    case Call::modify:
      return feature.modify_tensor_enabled(at, question.gemm, question.tensor);
    case Call::inspect:
      return feature.inspect_tensor_enabled(at, question.tensor);
    case Call::inspect_gemm:
      return feature.inspect_gemm_enabled(at, question.gemm);
    case Call::inspect_attention:
      return feature.inspect_attention_enabled(at);
    case Call::inspect_postquantize:
      break;
  }
  return feature.inspect_tensor_postquantize_enabled(at, question.gemm, question.tensor);
}

bool LayerRouting::is_thinned_out(const FeatureInstance& instance, Question& question,
                                  std::int64_t iteration) {
  if (instance.section->budget() == nullptr || instance.schedules_are_thinned()) return false;
  if (std::exchange(question.counted, iteration) != iteration) ++question.times_enabled;
  return (question.times_enabled - 1) % instance.section->budget()->thinning().factor() != 0;
}

void LayerRouting::ask_where_due(Question& question, std::int64_t iteration,
                                 const SwitchOff& switch_off) const {
  if (!question.due(iteration)) return;
  FeatureInstance& instance = *features_[question.feature];
  const bool observing = question.call != Call::modify && question.call != Call::fp8_gemm;
  RoutingAnswer answer = RoutingAnswer::never();
  if (!observing) {
    try {
      answer = ask(*instance.feature, question, {layer_name_, iteration});
    } catch (...) {
      rethrow_with_context(fmt::format("{} in layer '{}', {}", instance.title(), layer_name_,
                                       get_name(question.call)));
    }
  } else if (instance.observes.load(std::memory_order_relaxed)) {
    try {
      answer = ask(*instance.feature, question, {layer_name_, iteration});
    } catch (...) {
      rethrow_interruption();
      switch_off(instance, layer_name_, get_name(question.call));
    }
  }
  question.asked = iteration;
  question.enabled = answer.enabled && !is_thinned_out(instance, question, iteration);
  question.next = std::max(answer.next_iteration.value_or(kNever), iteration + 1);
  // A False for fp8_gemm_enabled holds until the next iteration to ask in.
  question.for_ever =
      answer.for_ever || (question.call == Call::fp8_gemm && !answer.next_iteration);
}

void LayerRouting::enter(const Question& question, RoutingPlan& plan, PlanAnswers& answers) const {
  PlanAnswers::Part& part = answers.parts[question.feature];
  if (question.call == Call::inspect) {
    part.inspect |= RoutingPlan::get_bit(question.tensor);
    plan.inspect |= RoutingPlan::get_bit(question.tensor);
    return;
  }
  const std::uint32_t pair = RoutingPlan::get_bit(question.gemm, question.tensor);
  switch (question.call) {
    case Call::inspect:
      return;
    case Call::inspect_postquantize:
      part.postquantize |= pair;
      plan.postquantize |= pair;
      return;
    case Call::inspect_gemm:
      part.gemms |= RoutingPlan::get_bit(question.gemm);
      plan.gemms |= RoutingPlan::get_bit(question.gemm);
      return;
    case Call::inspect_attention:
      part.attention = plan.attention = true;
      return;
    case Call::fp8_gemm:
      plan.high_precision |= RoutingPlan::get_bit(question.gemm);
      answers.alterations.push_back({question.gemm, std::nullopt, part.feature->entry});
      return;
    case Call::modify:
      break;
  }
  if (plan.modify & pair) {
    const auto other = std::ranges::find_if(
        answers.parts, [&](const PlanAnswers::Part& each) { return each.modify & pair; });
    raise<UsageError>(
        "layer '{}': {} and {} both want to modify the {} of {}; only one feature may: let them "
        "select different layers, tensors, GEMMs or iterations",
        layer_name_, other->feature->title(), part.feature->title(),
        telens::get_name(question.tensor), telens::get_name(question.gemm));
  }
  part.modify |= pair;
  plan.modify |= pair;
  answers.alterations.push_back({question.gemm, question.tensor, part.feature->entry});
}

RoutingPlan LayerRouting::make_plan(std::vector<Question>& questions, std::int64_t iteration,
                                    const RoutingRequest& request, const SwitchOff& switch_off,
                                    const IsInPlan& is_in_plan) const {
  RoutingPlan plan;
  plan.iteration = iteration;
  plan.evaluation = request.evaluation;
  if (!request.evaluation) has_trained_->store(true, std::memory_order_relaxed);
  auto answers = std::make_shared<PlanAnswers>();
  answers->layer_name = layer_name_;
  answers->observed = observed_;
  for (FeatureInstance* feature : features_) answers->parts.push_back({feature});
  for (Question& question : questions) {
    if (question.call == Call::fp8_gemm && !is_asked(question.gemm, plan, request)) continue;
    ask_where_due(question, iteration, switch_off);
    if (!question.may_alter() && !features_[question.feature]->looks_at(request.evaluation)) {
      answers->left_out = answers->left_out || is_in_plan(question);
      continue;
    }
    if (is_in_plan(question)) enter(question, plan, *answers);
  }
  plan.answers = std::move(answers);
  return plan;
}

RoutingPlan LayerRouting::route(std::int64_t iteration, const RoutingRequest& request,
                                const SwitchOff& switch_off) {
  std::vector<Question> questions = [&] {
    const std::lock_guard lock(mutex_);
    return questions_;
  }();
  RoutingPlan plan =
      make_plan(questions, iteration, request, switch_off,
                [&](const Question& question) { return question.is_in_plan(iteration); });
  const std::lock_guard lock(mutex_);
  questions_ = std::move(questions);
  return plan;
}

RoutingPlan LayerRouting::route_captured(std::int64_t iteration, const RoutingRequest& request,
                                         const SwitchOff& switch_off) {
  return make_plan(questions_, iteration, request, switch_off, [&](const Question& question) {
    if (!question.may_alter()) {
      return question.on(iteration) || question.next != kNever;
    }
    check_is_for_ever(question, iteration);
    return question.is_in_plan(iteration);
  });
}

void LayerRouting::check_is_for_ever(const Question& question, std::int64_t iteration) const {
  const FeatureInstance& feature = *features_[question.feature];
  const bool alters = question.is_in_plan(iteration);
  const bool section_stays = !feature.section->is_switched();
  if (alters ? question.for_ever && section_stays : question.next == kNever) return;
  const std::string what =
      question.call == Call::modify
          ? fmt::format("{} the {} of {}", alters ? "modifies" : "does not modify",
                        telens::get_name(question.tensor), telens::get_name(question.gemm))
          : fmt::format("{} {} in FP8", alters ? "does not run" : "runs",
                        telens::get_name(question.gemm));
  const std::string then =
      !section_stays ? std::string("may do otherwise once another section fires")
      : alters       ? std::string("does not say that it will in all later ones")
                     : fmt::format("may do otherwise from iteration {} on", question.next);
  raise<UsageError>(
      "layer '{}': {} cannot be captured into a graph, which repeats the captured decision: it "
      "{} in iteration {} and {}; make it decide the same in every iteration from the capture on "
      "(no freq, end_step or started_by), exclude the layer from its section, or run it outside of "
      "the graph",
      layer_name_, feature.title(), what, iteration, then);
}

int LayerRouting::count_forward(std::uint64_t iteration) {
  if (counted_iteration_.exchange(iteration, std::memory_order_relaxed) != iteration) {
    forwards_.store(0, std::memory_order_relaxed);
  }
  return forwards_.fetch_add(1, std::memory_order_relaxed) + 1;
}

std::optional<std::int64_t> LayerRouting::sleep_until(std::int64_t iteration,
                                                      bool under_recipe) const {
  const std::lock_guard lock(mutex_);
  std::int64_t earliest = kNever;
  for (const Question& question : questions_) {
    if (question.call == Call::fp8_gemm && !under_recipe) continue;
    if (question.due(iteration)) return std::nullopt;
    earliest = std::min(earliest, question.next);
  }
  return earliest;
}

}  // namespace telens::debug
