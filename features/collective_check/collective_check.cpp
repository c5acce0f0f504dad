#include "features/collective_check/collective_check.h"

#include <utility>

#include "core/base/fnv1a.h"
#include "features/rank_agreement/rank_agreement.h"
#include "hooks/tensor_ops.h"

namespace telens::features {

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
  report(gradients_, iteration, gradients, "CollectiveCheck", services_, told_);
  gradients_.clear();
  JudgedCollectives judged{.iteration = iteration, .wrong = {}, .places = {}};
  watch_->use(iteration, [&](SeenCollectives& seen) {
    judged.wrong = seen.wrong(collectives);
    judged.places = seen.places();
  });
  report(judged, services_, told_);
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
