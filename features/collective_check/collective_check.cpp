// CollectiveCheck: compares the data that ranks send with the results of their collectives.
#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fnv1a.h"
#include "features/builtin_features.h"
#include "features/collective_check/collective_check_options.h"
#include "features/collective_check/seen_collectives.h"
#include "features/rank_agreement/rank_agreement.h"
#include "hooks/engine/rank_exchange.h"
#include "hooks/feature_registry.h"
#include "hooks/observer.h"
#include "hooks/rank_checker.h"
#include "hooks/tensor_ops.h"

namespace telens::features {
namespace {

// Observes the collectives of layers and of the program during an iteration, on any thread.
// Outlives the feature if a collective is still running.
class WatchedCollectives final : public CollectiveObserver,
                                 public std::enable_shared_from_this<WatchedCollectives> {
 public:
  // due(iteration): returns true if the iteration's collectives must be observed.
  explicit WatchedCollectives(std::function<bool(std::int64_t)> due) : due_(std::move(due)) {}

  // Sets the place of the collectives that this thread begins from now on.
  static void show_place(CollectivePlace place);

  // A layer must not fail because of its observer; failed() reports errors.
  OnResult begin(const ObservedCollective& call) override;
  OnResult look_at(const ObservedCollective& call, CollectivePlace place);

  // Calls use(seen), which is empty if nothing was observed in this iteration.
  template <typename Use>
  void use(std::int64_t iteration, Use use) {
    const std::lock_guard lock(mutex_);
    if (iteration != iteration_) seen_.clear();
    use(seen_);
  }
  void clear();
  void stop();  // nothing is due after this

  bool failed() const { return failed_; }

 private:
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // guards the members below
  std::function<bool(std::int64_t)> due_;
  std::int64_t iteration_ = -1;
  std::uint64_t turn_ = 0;  // changes when seen_ restarts
  SeenCollectives seen_;
};

class CollectiveCheck final : public Observer, public RankChecker {
 public:
  CollectiveCheck(const config::FeatureEntry& entry, FeatureServices& services);
  ~CollectiveCheck() override;

  // Inspects only layer inputs, because they identify the running layer. A wgrad may therefore
  // still be added to main_grad directly.
  RoutingCalls routing_calls() const override;
  bool reads_statistics(TensorName, std::int64_t) const override { return false; }
  bool may_watch_wgrad() const override { return false; }
  bool follows_schedules() const override { return true; }
  RoutingAnswer inspect_tensor_enabled(const FeatureCall& at, TensorName tensor) override;
  void observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                      TensorReading& reading) override;
  void end() override;

  bool wants_model() const override { return options_.gradients; }
  void look_at(const ModelTensor& tensor) override;
  void look_at_collective(const ProgramCollective& collective) override;
  std::vector<std::int64_t> get_words(std::int64_t iteration) override;
  void compare(std::int64_t iteration,
               std::span<const std::vector<std::int64_t>> of_ranks) override;
  std::chrono::seconds longest_wait() const override { return options_.timeout; }

 private:
  const config::FeatureEntry& entry_;
  FeatureServices& services_;
  const CollectiveCheckOptions& options_;
  std::shared_ptr<WatchedCollectives> watch_;
  CollectiveObservation observation_{watch_};
  std::mutex mutex_;  // guards the members below
  ComparedItems gradients_;
  std::set<std::string> warned_;
};

constexpr std::string_view kWrong = "collectives_wrong";
constexpr std::string_view kLost = "nonfinite_lost";

struct Counts {
  double wrong = 0;
  double lost = 0;
};

// Records the counts of this rank for an iteration. `places`: all places at which a collective was
// compared.
void record(std::int64_t iteration, std::span<const WrongCollective> wrong,
            std::span<const CollectivePlace> places, FeatureServices& services) {
  std::map<CollectivePlace, Counts> counts;
  for (const CollectivePlace& place : places) counts[place];
  for (const WrongCollective& each : wrong) {
    counts[each.place].wrong += 1;
    counts[each.place].lost += static_cast<double>(each.lost);
  }
  for (const auto& [place, count] : counts) {
    for (const auto& [statistic, value] :
         {std::pair(kWrong, count.wrong), std::pair(kLost, count.lost)}) {
      services.record({.iteration = iteration,
                       .series = &services.series().find_or_add(
                           {.layer = place.layer, .tensor = place.tensor, .statistic = statistic}),
                       .value = value});
    }
  }
}

// Warns of places that are not in `warned` yet, and adds them to it.
void warn(std::int64_t iteration, std::span<const WrongCollective> wrong, FeatureServices& services,
          std::set<std::string>& warned) {
  const WrongCollective* first = nullptr;
  std::size_t others = 0;
  for (const WrongCollective& each : wrong) {
    const auto& [layer, tensor] = each.place;
    if (!warned.insert(fmt::format("collective {} {}", layer, tensor)).second) continue;
    if (first == nullptr) {
      first = &each;
    } else {
      ++others;
    }
  }
  if (first == nullptr) return;
  services.announce(
      "collective_wrong",
      fmt::format("CollectiveCheck: iteration {}: {} {}: {}{}", iteration, first->place.layer,
                  first->place.tensor, first->text,
                  others == 0 ? "" : fmt::format("; {} more are wrong from here on", others)),
      first->place.layer);
}

CollectivePlace& last_place() {
  static thread_local CollectivePlace place{"before any layer", "activation"};
  return place;
}

}  // namespace

void WatchedCollectives::show_place(CollectivePlace place) { last_place() = std::move(place); }

CollectiveObserver::OnResult WatchedCollectives::begin(const ObservedCollective& call) {
  try {
    return look_at(call, last_place());
  } catch (const std::exception&) {
    failed_ = true;
    return {};
  }
}

CollectiveObserver::OnResult WatchedCollectives::look_at(const ObservedCollective& call,
                                                         CollectivePlace place) {
  const std::int64_t iteration = running_iteration();
  const std::lock_guard lock(mutex_);
  if (!due_ || !due_(iteration)) return {};
  if (iteration != iteration_) {  // the rest arrived after the step() of their iteration
    seen_.clear();
    iteration_ = iteration;
    ++turn_;
  }
  const std::size_t number = seen_.begin(call, std::move(place));
  return [self = shared_from_this(), number, turn = turn_](const TensorHandle& result) {
    const std::lock_guard within(self->mutex_);
    if (self->turn_ != turn) return;
    try {
      self->seen_.end(number, result);
    } catch (const std::exception&) {
      self->failed_ = true;
    }
  };
}

void WatchedCollectives::clear() {
  const std::lock_guard lock(mutex_);
  seen_.clear();
  iteration_ = -1;
  ++turn_;
}

void WatchedCollectives::stop() {
  const std::lock_guard lock(mutex_);
  due_ = nullptr;
  seen_.clear();
  ++turn_;
}

CollectiveCheck::CollectiveCheck(const config::FeatureEntry& entry, FeatureServices& services)
    : entry_(entry),
      services_(services),
      options_(entry.selections.front().options_as<CollectiveCheckOptions>()),
      watch_(std::make_shared<WatchedCollectives>(
          [this](std::int64_t iteration) { return entry_.due(iteration, thinning_factor()); })) {}

CollectiveCheck::~CollectiveCheck() { end(); }

void CollectiveCheck::end() {
  observation_.end();
  watch_->stop();
}

RoutingCalls CollectiveCheck::routing_calls() const {
  RoutingCalls calls = RoutingCalls::none();
  calls.inspect = true;
  return calls;
}

RoutingAnswer CollectiveCheck::inspect_tensor_enabled(const FeatureCall& at, TensorName tensor) {
  if (!is_gemm_input(tensor)) return RoutingAnswer::never();
  const config::Schedule& schedule = entry_.selections.front().schedule;
  return {schedule.due(at.iteration, thinning_factor()),
          schedule.next_due_after(at.iteration, thinning_factor())};
}

void CollectiveCheck::observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                                     TensorReading&) {
  WatchedCollectives::show_place(
      {std::string(at.layer_name), std::string(telens::get_name(call.tensor_name))});
}

void CollectiveCheck::look_at(const ModelTensor& tensor) {
  if (tensor.kind != ModelTensor::Kind::gradient) return;
  const TensorHandle digest = tensor_ops::digest(tensor.value);
  const std::uint64_t part = tensor.part.empty() ? kWhole : fnv1a(tensor.part);
  const std::lock_guard lock(mutex_);
  gradients_.add({tensor.layer, tensor.tensor, "gradient"}, part, digest);
}

void CollectiveCheck::look_at_collective(const ProgramCollective& collective) {
  if (!collective.group || collective.sent.numel() == 0) return;
  // An exchange has one part for each rank.
  const bool exchanges = collective.kind == CollectiveKind::exchange;
  const std::int64_t ranks = collective.group->size();
  const auto in_parts = [&](const TensorHandle& x) {
    return exchanges ? tensor_ops::in_parts(x, ranks) : x;
  };
  const std::vector<std::int64_t> one_each(static_cast<std::size_t>(ranks), 1);
  const RowCounts rows{.sent = one_each, .received = one_each};
  const TensorHandle sent = in_parts(collective.sent);
  const CollectiveObserver::OnResult on_result =
      watch_->look_at({collective.kind, sent, collective.group, exchanges ? &rows : nullptr},
                      {collective.name, "output"});
  if (on_result) on_result(in_parts(collective.result));
}

// The words of the gradients come first, after their count.
std::vector<std::int64_t> CollectiveCheck::get_words(std::int64_t iteration) {
  const std::lock_guard lock(mutex_);
  RankWords words = gradients_.words();
  words.insert(words.begin(), static_cast<std::int64_t>(words.size()));
  watch_->use(iteration, [&](SeenCollectives& seen) {
    const RankWords of_collectives = seen.words();
    words.insert(words.end(), of_collectives.begin(), of_collectives.end());
  });
  return words;
}

void CollectiveCheck::compare(std::int64_t iteration,
                              std::span<const std::vector<std::int64_t>> of_ranks) {
  std::vector<RankWords> gradients, collectives;
  for (const RankWords& words : of_ranks) {
    const std::ptrdiff_t size = words.empty() ? 0 : static_cast<std::ptrdiff_t>(words.front()) + 1;
    gradients.emplace_back(words.begin() + (words.empty() ? 0 : 1), words.begin() + size);
    collectives.emplace_back(words.begin() + size, words.end());
  }
  const std::lock_guard lock(mutex_);
  report(gradients_, iteration, gradients, "CollectiveCheck", services_, warned_);
  gradients_.clear();
  std::vector<WrongCollective> wrong;
  std::vector<CollectivePlace> places;
  watch_->use(iteration, [&](SeenCollectives& seen) {
    wrong = seen.wrong(collectives);
    places = seen.places();
  });
  record(iteration, wrong, places, services_);
  warn(iteration, wrong, services_, warned_);
  watch_->clear();
  if (watch_->failed()) {
    raise<Error>("a collective could not be observed; its data is not compared");
  }
}

FeatureRegistration collective_check() {
  return {collective_check_description(),
          [](const config::FeatureEntry& entry, FeatureServices& services) {
            return std::make_unique<CollectiveCheck>(entry, services);
          }};
}

}  // namespace telens::features
