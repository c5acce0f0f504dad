#include "hooks/session/rank_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <exception>

#include "core/base/error.h"
#include "core/base/text.h"
#include "hooks/clock.h"
#include "record/rows/tables.h"

namespace telens::debug {
namespace {

// Each rank writes to the store of the world that it has reached an exchange; a rank that times out
// reads there which ranks are missing.
class CheckIns {
 public:
  CheckIns(RankGroup& world, std::int64_t exchange)
      : store_(world.store()), rank_(world.rank()), size_(world.size()), now_(exchange) {}

  void note() {
    if (!store_) return;
    // a rank that reaches this exchange has left the previous one
    constexpr std::int64_t kRead = 2;
    store_->set(key(now_, rank_), "1");
    if (now_ >= kRead) store_->remove(key(now_ - kRead, rank_));
  }

  std::vector<int> missing() {
    std::vector<int> missing;
    for (int rank = 0; store_ && rank < size_; ++rank) {
      if (rank != rank_ && !store_->has(key(now_, rank))) missing.push_back(rank);
    }
    return missing;
  }

 private:
  static std::string key(std::int64_t exchange, int rank) {
    return fmt::format("telens/checks/{}/{}", exchange, rank);
  }

  std::shared_ptr<RankStore> store_;
  int rank_;
  int size_;
  std::int64_t now_;
};

std::string missing_in_words(const std::vector<int>& ranks) {
  if (ranks.empty()) return "a rank that has given up waiting";
  return describe_ranks(ranks);
}

}  // namespace

std::vector<RankChecks::Due> RankChecks::due_in(std::int64_t iteration) const {
  std::vector<Due> due;
  for (const auto& each : features_.all()) {
    auto* checker = dynamic_cast<RankChecker*>(each->feature.get());
    if (checker == nullptr || !each->section->runs()) continue;
    if (each->entry->due(iteration, each->feature->thinning_factor())) {
      due.push_back({each.get(), checker});
    }
  }
  return due;
}

std::optional<std::chrono::seconds> RankChecks::longest_wait(const RankGroupPtr& world) const {
  std::optional<std::chrono::seconds> limit;
  if (!has_several_ranks(world)) return limit;
  for (const auto& each : features_.all()) {
    const auto* checker = dynamic_cast<const RankChecker*>(each->feature.get());
    if (checker == nullptr) continue;
    limit = std::min(limit.value_or(checker->longest_wait()), checker->longest_wait());
  }
  return limit;
}

bool RankChecks::want_model(std::int64_t iteration) const {
  return is_on() && std::ranges::any_of(due_in(iteration), [](const Due& each) {
           return each.checker->wants_model();
         });
}

void RankChecks::look_at(std::int64_t iteration, std::span<const ModelTensor> tensors) {
  const std::vector<Due> due = due_in(iteration);
  for (const ModelTensor& tensor : tensors) {
    std::vector<FeatureInstance*> selecting;
    try {
      selecting = features_.all_for(tensor.module);
    } catch (const ConfigError&) {  // two sections select it; its layers report that
      continue;
    }
    for (const auto& [instance, checker] : due) {
      if (std::ranges::find(selecting, instance) == selecting.end()) continue;
      if (!checker->wants_model()) continue;
      isolation_.observe(*instance, tensor.layer, "look_at",
                         [&, seen = checker] { seen->look_at(tensor); });
    }
  }
}

void RankChecks::look_at(std::int64_t iteration, const ProgramCollective& collective) {
  if (!is_on()) return;
  for (const auto& [instance, checker] : due_in(iteration)) {
    isolation_.observe(*instance, collective.name, "look_at_collective",
                       [&, seen = checker] { seen->look_at_collective(collective); });
  }
}

std::vector<RankWords> RankChecks::gather(const RankWords& own, RankGroup& group) {
  const std::size_t room = capacity_ - 1;
  RankWords first(capacity_);
  first[0] = static_cast<std::int64_t>(own.size());
  std::copy_n(own.begin(), std::min(own.size(), room), first.begin() + 1);
  std::vector<RankWords> all;
  std::size_t longest = 0;
  for (const RankWords& each : gather_words(first, group)) {
    const auto size = static_cast<std::size_t>(each[0]);
    longest = std::max(longest, size);
    const auto end = each.begin() + 1 + static_cast<std::ptrdiff_t>(std::min(size, room));
    all.emplace_back(each.begin() + 1, end).resize(size);
  }
  if (longest <= room) return all;
  RankWords rest(longest - room);
  if (own.size() > room)
    std::copy(own.begin() + static_cast<std::ptrdiff_t>(room), own.end(), rest.begin());
  const std::vector<RankWords> rests = gather_words(rest, group);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].size() <= room) continue;
    std::copy_n(rests[rank].begin(), all[rank].size() - room,
                all[rank].begin() + static_cast<std::ptrdiff_t>(room));
  }
  capacity_ = std::bit_ceil(longest + 1);
  return all;
}

// Returns an empty list if a rank did not arrive.
std::vector<RankWords> RankChecks::exchange(const RankWords& own, std::int64_t iteration,
                                            RankGroup& group) {
  CheckIns check_ins(group, exchanges_++);
  std::string why;
  std::vector<int> missing;
  const double begin = seconds_now();
  try {
    check_ins.note();
    return gather(own, group);
  } catch (const std::exception& error) {
    rethrow_interruption();
    why = error.what();
    try {
      missing = check_ins.missing();
    } catch (const std::exception&) {  // the rank that hosts the store is gone
    }
  }
  alone_ = true;
  events_.announce(
      "ranks_not_compared",
      fmt::format("{} did not come to the comparison of ranks in iteration {} (waited for {:.1f} "
                  "s: {}){}",
                  missing_in_words(missing), iteration, seconds_now() - begin,
                  why.substr(0, why.find('\n')), record::kNotComparedAnymore),
      {});
  return {};
}

// A message contains, for each due feature, the number of words and the words.
void RankChecks::run(std::int64_t iteration) {
  if (!is_on()) return;
  const std::vector<Due> due = due_in(iteration);
  if (due.empty()) return;
  RankWords own;
  for (const auto& [instance, checker] : due) {
    RankWords words;
    isolation_.observe(*instance, {}, "get_words",
                       [&, asked = checker] { words = asked->get_words(iteration); });
    own.push_back(static_cast<std::int64_t>(words.size()));
    own.insert(own.end(), words.begin(), words.end());
  }
  const std::vector<RankWords> of_ranks = exchange(own, iteration, *group_);
  if (of_ranks.empty()) return;
  std::vector<std::ptrdiff_t> at(of_ranks.size(), 0);
  for (const auto& [instance, checker] : due) {
    std::vector<RankWords> parts;
    for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
      const auto begin = of_ranks[rank].begin() + at[rank] + 1;
      const std::int64_t size = of_ranks[rank][static_cast<std::size_t>(at[rank])];
      parts.emplace_back(begin, begin + size);
      at[rank] += size + 1;
    }
    isolation_.observe(*instance, {}, "compare",
                       [&, told = checker] { told->compare(iteration, parts); });
  }
}

}  // namespace telens::debug
