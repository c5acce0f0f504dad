#include "inspector_cli/report/losses.h"

#include <map>

namespace telens::cli {

std::vector<diagnosis::Point> read_losses(const record::RunReader& run) {
  std::map<int, std::map<std::int64_t, double>> by_rank;  // the last value of an iteration
  const auto& words = run.names(record::Dictionary::word);
  for (const record::Scalar& scalar : run.scalars()) {
    if (scalar.name == record::kNoName || words[scalar.name] != "loss") continue;
    by_rank[scalar.rank][scalar.iteration] = scalar.value;
  }
  std::vector<diagnosis::Point> losses;
  if (by_rank.empty()) return losses;
  for (const auto& [iteration, value] : by_rank.begin()->second) {
    losses.push_back({iteration, value});
  }
  return losses;
}

}  // namespace telens::cli
