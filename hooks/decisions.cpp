#include "hooks/decisions.h"

#include <algorithm>
#include <utility>

namespace telens {

std::vector<std::int64_t> Decisions::words() const {
  std::vector<std::int64_t> words;
  for (const Part& part : all_) words.push_back(part.word);
  return words;
}

bool Decisions::look_at_rows(std::int64_t iteration) const {
  return std::ranges::any_of(all_, [&](const Part& part) {
    return part.decider->looks_at_rows() && part.rules.runs() && part.decider->decides(iteration);
  });
}

void Decisions::follow(std::int64_t iteration,
                       std::span<const std::vector<std::int64_t>> of_ranks) {
  if (!std::exchange(waiting_, false)) return;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (!std::exchange(all_[i].decided, false)) continue;
    std::vector<std::int64_t> wanted;
    for (const std::vector<std::int64_t>& rank : of_ranks) wanted.push_back(rank[i]);
    all_[i].decider->follow(iteration, wanted);
    all_[i].word = 0;
  }
}

void Decisions::decide(const EndedIteration& ended) {
  for (Part& part : all_) {
    if (!part.rules.runs() || !part.decider->decides(ended.iteration)) continue;
    waiting_ = part.decided = true;
    part.rules.guard([&] { part.word = part.decider->decide(ended); });
  }
}

void Decisions::follow_own(std::int64_t iteration) {
  const std::vector<std::int64_t> own = words();
  follow(iteration, {&own, 1});
}

}  // namespace telens
