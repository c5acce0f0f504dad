#include "inspector_cli/bisect/loss_reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "features/record/run_reader.h"
#include "inspector_cli/report/series.h"

namespace telens::cli {
namespace {

constexpr std::size_t kShare = 10;  // the last tenth is compared

// Takes those of the lowest rank that has any.
std::map<std::int64_t, double> losses_of(const record::RunReader& run) {
  std::map<int, std::map<std::int64_t, double>> by_rank;
  const auto& words = run.names(record::Dictionary::word);
  for (const record::Scalar& scalar : run.scalars()) {
    if (scalar.name == record::kNoName || words[scalar.name] != "loss") continue;
    by_rank[scalar.rank][scalar.iteration] = scalar.value;
  }
  return by_rank.empty() ? std::map<std::int64_t, double>() : by_rank.begin()->second;
}

const std::pair<const std::int64_t, double>* first_bad(
    const std::map<std::int64_t, double>& losses) {
  const auto bad =
      std::ranges::find_if(losses, [](const auto& each) { return !std::isfinite(each.second); });
  return bad == losses.end() ? nullptr : &*bad;
}

}  // namespace

LossReference::LossReference(std::string path, double tolerance)
    : path_(std::move(path)), tolerance_(tolerance), losses_(losses_of(open_run(path_))) {
  if (losses_.empty()) {
    raise<UsageError>(
        "--reference {}: expected a run with losses, as debug.step(loss) records them, and there "
        "are none; run the reference again with it, or judge by --check",
        path_);
  }
  if (const auto* bad = first_bad(losses_)) {
    raise<UsageError>(
        "--reference {}: expected a run that went well, and its loss in iteration {} is {}", path_,
        bad->first, bad->second);
  }
}

LossVerdict LossReference::judge(const std::string& log_dir) const {
  const std::map<std::int64_t, double> losses = losses_of(open_run(log_dir));
  if (const auto* bad = first_bad(losses)) {
    return {false, fmt::format("loss {} in iteration {}", bad->second, bad->first)};
  }
  std::vector<std::pair<double, double>> both;
  for (const auto& [iteration, loss] : losses) {
    const auto expected = losses_.find(iteration);
    if (expected != losses_.end()) both.emplace_back(loss, expected->second);
  }
  if (both.empty()) {
    raise<UsageError>(
        "the run in {} has no loss in an iteration of {}: expected debug.step(loss) in the "
        "program, in the same iterations as in the reference",
        log_dir, path_);
  }
  const std::size_t compared = std::max<std::size_t>(1, both.size() / kShare);
  double own = 0, expected = 0;
  for (std::size_t i = both.size() - compared; i < both.size(); ++i) {
    own += both[i].first / static_cast<double>(compared);
    expected += both[i].second / static_cast<double>(compared);
  }
  return {own - expected <= tolerance_ * std::abs(expected),
          fmt::format("loss {:.5g}, reference {:.5g}", own, expected)};
}

}  // namespace telens::cli
