#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "analysis/rules/rules.h"
#include "analysis/rules/scale_reads.h"

namespace telens::analysis {
namespace {

constexpr long kMinWideMargin = 4;            // bits, of 18 powers of two in E4M3 with subnormals
constexpr double kMinUsualMarginShare = 0.6;  // share of tensors with the usual margin

// The margins of one tensor.
struct MarginSeries {
  Place place;
  std::vector<std::pair<std::int64_t, long>> values = {};  // iteration, margin
};

std::vector<MarginSeries> list_margins(const Facts& facts) {
  std::vector<MarginSeries> all;
  for (const ScaleSeries& scales : scale_series(facts)) {
    if (!scales.has_margin) continue;
    MarginSeries margin{.place = scales.place};
    for (const ScaleRead& read : scales.reads) {
      margin.values.emplace_back(read.iteration, std::lround(read.margin));
    }
    if (!margin.values.empty()) all.push_back(std::move(margin));
  }
  return all;
}

// Returns the initial margin of most tensors; nullopt if they are too different.
std::optional<long> find_usual_margin(const std::vector<MarginSeries>& all) {
  std::map<long, std::size_t> counts;
  for (const MarginSeries& each : all) ++counts[each.values.front().second];
  const auto most =
      std::ranges::max_element(counts, {}, [](const auto& row) { return row.second; });
  if (most == counts.end()) return std::nullopt;
  const bool is_clear =
      static_cast<double>(most->second) >= kMinUsualMarginShare * static_cast<double>(all.size());
  return is_clear ? std::optional(most->first) : std::nullopt;
}

Finding wrong_margin_finding(const MarginSeries& margin, std::size_t i, std::string summary,
                             double confidence) {
  const auto [iteration, value] = margin.values[i];
  return {.cause = "wrong_margin",
          .place = margin.place,
          .first = iteration,
          .last = margin.values.back().first,
          .confidence = confidence,
          .summary = std::move(summary),
          .evidence = {{"scale_headroom + scale_staleness", margin.place, iteration,
                        static_cast<double>(value), "margin"}}};
}

std::vector<Finding> find_wrong_margin(const Facts& facts) {
  const std::vector<MarginSeries> all = list_margins(facts);
  const auto usual = find_usual_margin(all);
  if (!usual) return {};
  if (*usual >= kMinWideMargin || *usual < 0) {
    return {wrong_margin_finding(
        all.front(), 0,
        fmt::format("all tensors are cast with a margin of {}: {}", *usual,
                    *usual < 0 ? "their largest values are clipped"
                               : "this many bits of the format's range are never used"),
        kProbable)};
  }
  std::vector<Finding> found;
  for (const MarginSeries& margin : all) {
    const auto other =
        std::ranges::find_if(margin.values, [&](const auto& row) { return row.second != *usual; });
    if (other == margin.values.end()) continue;
    const auto at = static_cast<std::size_t>(other - margin.values.begin());
    found.push_back(wrong_margin_finding(
        margin, at,
        fmt::format("the margin is {}, while other tensors have {}", other->second, *usual),
        kProven));
  }
  return found;
}

}  // namespace

Rule wrong_margin() {
  return {.cause = "wrong_margin",
          .title = "wrong margin in delayed scaling",
          .doc =
              "The sum scale_headroom + scale_staleness is exactly the margin of the recipe. "
              "Reported: a tensor whose margin differs from the other tensors, and any margin of 4 "
              "or more (unused bits) or below 0 (clipping).",
          .stage = Stage::scale,
          .required = {"scale_staleness", "scale_headroom", "cur_amax"},
          .recorded_by = "ScaleHealth and LogTensorStats (cur_amax)",
          .alternatives = "A second recipe that part of the model uses on purpose.",
          .next_step =
              "use DelayedScaling(margin=0), or margin=1 for tensors that grow; "
              "configs/value_histograms.yaml records the loss for each margin; telens whatif RUN "
              "--margin 0",
          .find = find_wrong_margin};
}

}  // namespace telens::analysis
