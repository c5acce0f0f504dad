#include "hooks/session/finding_sources.h"

#include <algorithm>
#include <iterator>

namespace telens::debug {

void FindingSources::begin(const FeatureSet& features, const std::shared_ptr<Sink>& run_file) {
  for (const auto& each : features.all()) {
    auto* source = dynamic_cast<FindingSource*>(each->feature.get());
    if (source == nullptr) continue;
    source->begin(run_file);
    all_.push_back(source);
  }
}

std::vector<Finding> FindingSources::findings() const {
  std::vector<Finding> findings;
  for (const FindingSource* each : all_) {
    std::ranges::move(each->findings(), std::back_inserter(findings));
  }
  return findings;
}

void FindingSources::listen(const FindingListener& listener) {
  for (FindingSource* each : all_) each->listen(listener);
}

bool FindingSources::allow_checkpoint(std::int64_t last, std::chrono::milliseconds wait) const {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + wait;
  return std::ranges::all_of(all_, [&](FindingSource* each) {
    if (!each->may_veto()) return true;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    each->look_now(last, std::max(left, std::chrono::milliseconds(0)));
    return each->allows_checkpoints();
  });
}

void FindingSources::rethrow_interruption() {
  for (FindingSource* each : all_) {
    if (const auto interruption = each->take_interruption()) std::rethrow_exception(interruption);
  }
}

}  // namespace telens::debug
