#include "features/collective_check/collective_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/fnv1a.h"
#include "features/engine/tensor_digest.h"
#include "features/rank_agreement/rank_agreement.h"

namespace telens::features {
namespace {

constexpr std::string_view kWrong = "collectives_wrong";
constexpr std::string_view kLost = "nonfinite_lost";

std::int64_t running_iteration() {
  const std::uint64_t tick = hook_points::current_tick.load(std::memory_order_relaxed);
  return static_cast<std::int64_t>(tick & ((std::uint64_t{1} << hook_points::kIterationBits) - 1));
}

// The layer and tensor that this thread has shown last.
CollectivePlace& last_seen() {
  static thread_local CollectivePlace place{"before any layer", "activation"};
  return place;
}

}  // namespace

// Outlives the feature where a collective still runs.
class CollectiveCheck::Watch final : public CollectiveWatch,
                                     public std::enable_shared_from_this<CollectiveCheck::Watch> {
 public:
  explicit Watch(std::function<bool(std::int64_t)> due) : due_(std::move(due)) {}

  // A layer's collective must not fail for what looks at it.
  OnResult begin(const CollectiveCall& call) override {
    try {
      return look_at(call, last_seen(), running_iteration());
    } catch (const std::exception&) {
      failed_ = true;
      return {};
    }
  }

  OnResult look_at(const CollectiveCall& call, CollectivePlace place, std::int64_t iteration) {
    const std::lock_guard lock(mutex_);
    if (!due_ || !due_(iteration)) return {};
    if (iteration != iteration_) {  // the rest came after the step() of its iteration
      seen_.clear();
      iteration_ = iteration;
      ++turn_;
    }
    const std::size_t number = seen_.begin(call, std::move(place));
    return [self = shared_from_this(), number, turn = turn_](const at::Tensor& result) {
      const std::lock_guard within(self->mutex_);
      if (self->turn_ != turn) return;
      try {
        self->seen_.end(number, result);
      } catch (const std::exception&) {
        self->failed_ = true;
      }
    };
  }

  // Calls use(seen), which is empty where nothing was seen in this iteration.
  template <typename Use>
  void use(std::int64_t iteration, Use use) {
    const std::lock_guard lock(mutex_);
    if (iteration != iteration_) seen_.clear();
    use(seen_);
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    seen_.clear();
    iteration_ = -1;
    ++turn_;
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    due_ = nullptr;
    seen_.clear();
    ++turn_;
  }

  bool failed() const { return failed_; }

 private:
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // over what follows
  std::function<bool(std::int64_t)> due_;
  std::int64_t iteration_ = -1;
  std::uint64_t turn_ = 0;
  SeenCollectives seen_;
};

CollectiveCheck::CollectiveCheck(const config::FeatureEntry& entry, FeatureServices& services)
    : entry_(entry),
      services_(services),
      options_(entry.selections.front().options_as<CollectiveCheckOptions>()),
      watch_(std::make_shared<Watch>(
          [this](std::int64_t iteration) { return entry_.due(iteration, thinning_factor()); })) {
  collective_watches::add(watch_);
}

CollectiveCheck::~CollectiveCheck() { end(); }

void CollectiveCheck::end() {
  collective_watches::remove(watch_);
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

void CollectiveCheck::inspect_tensor(const FeatureCall& at, const InspectTensorCall& call,
                                     TensorReading&) {
  last_seen() = {std::string(at.layer_name), std::string(telens::name_of(call.tensor_name))};
}

void CollectiveCheck::look_at(const ModelTensor& tensor) {
  if (tensor.kind != ModelTensor::Kind::gradient) return;
  at::Tensor digest = digest_of(tensor.value);
  const std::uint64_t part = tensor.part.empty() ? kWhole : fnv1a(tensor.part);
  const std::lock_guard lock(mutex_);
  gradients_.add({tensor.layer, tensor.tensor, "gradient"}, part, std::move(digest));
}

void CollectiveCheck::look_at_collective(const ProgramCollective& collective) {
  using Kind = ProgramCollective::Kind;
  const CollectiveKind kind = collective.kind == Kind::sum       ? CollectiveKind::sum
                              : collective.kind == Kind::maximum ? CollectiveKind::maximum
                                                                 : CollectiveKind::gather;
  if (!collective.group || collective.sent.numel() == 0) return;
  const CollectiveWatch::OnResult on_result = watch_->look_at(
      {kind, collective.sent, collective.group}, {collective.name, "output"}, running_iteration());
  if (on_result) on_result(collective.result);
}

// The words of the gradients come first, with their number.
std::vector<std::int64_t> CollectiveCheck::words_of(std::int64_t iteration) {
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
  report(gradients_, iteration, gradients, "CollectiveCheck", services_, told_);
  gradients_.clear();
  report_collectives(iteration, collectives);
  watch_->clear();
  if (watch_->failed()) {
    raise<Error>("a collective could not be looked at; what it sent is not compared");
  }
}

void CollectiveCheck::record(std::int64_t iteration, const CollectivePlace& place,
                             std::string_view statistic, double value) {
  services_.record({.iteration = iteration,
                    .series = &services_.series().find_or_add(
                        {.layer = place.layer, .tensor = place.tensor, .statistic = statistic}),
                    .value = value});
}

void CollectiveCheck::report_collectives(std::int64_t iteration,
                                         std::span<const RankWords> of_ranks) {
  std::vector<WrongCollective> wrong;
  std::vector<CollectivePlace> places;
  watch_->use(iteration, [&](SeenCollectives& seen) {
    wrong = seen.wrong(of_ranks);
    places = seen.places();
  });
  std::map<CollectivePlace, std::pair<double, double>> counts;
  for (const CollectivePlace& place : places) counts[place];
  for (const WrongCollective& each : wrong) {
    counts[each.place].first += 1;
    counts[each.place].second += static_cast<double>(each.lost);
  }
  for (const auto& [place, count] : counts) {
    record(iteration, place, kWrong, count.first);
    record(iteration, place, kLost, count.second);
  }
  const WrongCollective* first = nullptr;
  std::size_t others = 0;
  for (const WrongCollective& each : wrong) {
    if (!told_.insert(fmt::format("collective {} {}", each.place.layer, each.place.tensor))
             .second) {
      continue;
    }
    if (first == nullptr) {
      first = &each;
    } else {
      ++others;
    }
  }
  if (first == nullptr) return;
  services_.announce(
      "collective_wrong",
      fmt::format("CollectiveCheck: iteration {}: {} {}: {}{}", iteration, first->place.layer,
                  first->place.tensor, first->text,
                  others == 0 ? "" : fmt::format("; {} more are wrong from here on", others)),
      first->place.layer);
}

FeatureRegistration collective_check() {
  return {collective_check_description(),
          [](const config::FeatureEntry& entry, FeatureServices& services) {
            return std::make_unique<CollectiveCheck>(entry, services);
          }};
}

}  // namespace telens::features
