#include "inspector_cli/bisect/loss_reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "analysis/records.h"
#include "core/base/error.h"
#include "inspector_cli/report/open_run.h"
#include "inspector_cli/terminal/text.h"

namespace telens::cli {
namespace {

using analysis::read_losses;

using diagnosis::Point;

constexpr std::size_t kShare = 10;  // compares the last tenth of the iterations

const Point* first_bad(const std::vector<Point>& losses) {
  const auto bad =
      std::ranges::find_if(losses, [](const Point& each) { return !std::isfinite(each.value); });
  return bad == losses.end() ? nullptr : &*bad;
}

}  // namespace

LossReference::LossReference(std::string path, double tolerance)
    : path_(std::move(path)), tolerance_(tolerance), losses_(read_losses(open_run(path_))) {
  if (losses_.empty()) {
    raise<UsageError>(
        "--reference {}: the run contains no losses; record it again with debug.step(loss), or "
        "use --check",
        path_);
  }
  if (const auto* bad = first_bad(losses_)) {
    raise<UsageError>(
        "--reference {}: the loss in iteration {} is {}; expected a run with finite losses", path_,
        bad->iteration, bad->value);
  }
}

LossVerdict LossReference::judge(const std::string& log_dir) const {
  const std::vector<Point> losses = read_losses(open_run(log_dir));
  if (const auto* bad = first_bad(losses)) {
    return {false, fmt::format("loss {} in iteration {}", bad->value, bad->iteration)};
  }
  std::vector<std::pair<double, double>> both;
  for (const Point& own : losses) {
    const auto expected = std::ranges::lower_bound(losses_, own.iteration, {}, &Point::iteration);
    if (expected != losses_.end() && expected->iteration == own.iteration) {
      both.emplace_back(own.value, expected->value);
    }
  }
  if (both.empty()) {
    raise<UsageError>(
        "the run in {} and {} do not share an iteration with a loss; call debug.step(loss) in "
        "the same iterations as in the reference",
        log_dir, path_);
  }
  const std::size_t compared = std::max<std::size_t>(1, both.size() / kShare);
  double own = 0, expected = 0;
  for (std::size_t i = both.size() - compared; i < both.size(); ++i) {
    own += both[i].first / static_cast<double>(compared);
    expected += both[i].second / static_cast<double>(compared);
  }
  return {own - expected <= tolerance_ * std::abs(expected),
          fmt::format("loss {}, reference {}", number_text(own, 5), number_text(expected, 5))};
}

}  // namespace telens::cli
