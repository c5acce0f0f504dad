#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/baseline.h"
#include "analysis/rules/rules.h"
#include "analysis/rules/scale_reads.h"

namespace telens::analysis {
namespace {

constexpr double kOff = 1.5;  // bits: a scale that is a power of two is off by less than 1
constexpr double kOffAfterGap = 4;
// Limit for one or two iterations: the newest amax may belong to a smaller micro-batch.
constexpr double kOffOnce = 4;
constexpr std::size_t kByChance = 2;  // reads on end

// Returns the bits by which the scales of an iteration are outside of the range that the amaxes so
// far allow: below the newest or above the largest. A scale that fits the current tensor is
// correct, however it was computed.
double off_by(const ScaleRead& read, const ScaleRead& before, double largest_before) {
  const double guard = read.iteration == before.iteration + 1 ? kOff : kOffAfterGap;
  if (std::abs(read.staleness()) < guard) return 0;
  const double above = read.stands_for - read.span - largest_before;
  const double below = read.stands_for + read.span - before.amax;
  if (above > guard) return above;
  return below < -guard ? below : 0;
}

// Describes the scale, compared with the one that the amax of the iteration before asks for.
std::string likeness(double scale, double expected, double off) {
  constexpr double kNear = 1;
  constexpr double kFar = 2;
  if (std::abs(scale) < 0.01 && std::abs(expected) > kNear) {
    return "it is 1, as if it were lost";
  }
  if (std::abs(expected) > kFar && std::abs(scale + expected) < kNear) {
    return "it is the inverse of the expected scale";
  }
  if (std::abs(expected) > kFar && std::abs(scale - 2 * expected) < kNear) {
    return "it looks as if it were applied twice";
  }
  return fmt::format("{:.2g} bits too {}", std::abs(off), off > 0 ? "small" : "large");
}

struct Wrong {
  std::size_t first = 0, last = 0, reads = 0;
  double off = 0;
  double expected = 0;  // log2 of the amax
};

std::optional<Wrong> first_wrong(const std::vector<ScaleRead>& reads, const Series& amax,
                                 bool whole_past) {
  const std::vector<double> largest = largest_amaxes(reads, amax);
  std::optional<Wrong> wrong;
  for (std::size_t i = 1; i < reads.size(); ++i) {
    const double off = off_by(reads[i], reads[i - 1], largest[i - 1]);
    if (off == 0) {
      const bool passing = wrong && wrong->reads <= kByChance && std::abs(wrong->off) < kOffOnce;
      if (passing) wrong.reset();
      continue;
    }
    // A resumed history may remember more than the run has seen: a change must be seen then.
    const bool moved = std::abs(reads[i].stands_for - reads[i - 1].stands_for) > kOff;
    if (!wrong && !moved && !whole_past) continue;
    if (!wrong) {
      wrong =
          Wrong{.first = i, .off = off, .expected = off > 0 ? largest[i - 1] : reads[i - 1].amax};
    }
    wrong->last = i;
    ++wrong->reads;
  }
  if (wrong && wrong->reads <= kByChance && std::abs(wrong->off) < kOffOnce) return std::nullopt;
  return wrong;
}

// Distance of a scale from the range that the amaxes so far allow, for a scale that moved by less
// than kOff and stayed there. The usual distance in the past, for example from amaxes of
// evaluations, which are not recorded, is subtracted.
std::optional<Wrong> moved_for_good(const std::vector<ScaleRead>& reads, const Series& amax) {
  constexpr std::size_t kPast = 5;
  constexpr std::size_t kSustained = 4;
  constexpr double kLeast = 0.6;  // bits: a factor of 2 is 1, less what the amaxes vary by
  const std::vector<double> largest = largest_amaxes(reads, amax);
  std::vector<double> below(reads.size()), above(reads.size());
  for (std::size_t i = 1; i < reads.size(); ++i) {
    below[i] = reads[i - 1].amax - reads[i].stands_for - reads[i].span;
    above[i] = reads[i].stands_for - reads[i].span - largest[i - 1];
  }
  double most_below = 0, most_above = 0;  // in the reads before
  for (std::size_t i = 2; i + kSustained <= reads.size(); ++i) {
    most_below = std::max(most_below, below[i - 1]);
    most_above = std::max(most_above, above[i - 1]);
    if (i <= kPast) continue;
    const auto jump = reads[i].stands_for - reads[i - 1].stands_for;
    if (std::abs(jump) < kLeast) continue;
    // A scale that follows its tensor within the iteration is right.
    if (std::abs(reads[i].staleness()) < kLeast) continue;
    const std::vector<double>& off = jump < 0 ? below : above;
    const double usual = jump < 0 ? most_below : most_above;
    const auto stays = [&](double each) { return each > usual + kLeast; };
    if (!std::all_of(&off[i], &off[i] + kSustained, stays)) continue;
    return Wrong{.first = i,
                 .last = i + kSustained - 1,
                 .reads = kSustained,
                 .off = jump < 0 ? -off[i] : off[i],
                 .expected = jump < 0 ? reads[i - 1].amax : largest[i - 1]};
  }
  return std::nullopt;
}

Finding wrong_scale_finding(const Facts& facts, const ScaleSeries& staleness, const Wrong& wrong) {
  const std::vector<ScaleRead>& reads = staleness.reads;
  const ScaleRead& read = reads[wrong.first];
  Finding finding{
      .cause = "wrong_scale",
      .place = staleness.place,
      .first = read.iteration,
      .last = reads[wrong.last].iteration,
      .confidence = wrong.reads > 1 || std::abs(wrong.off) > 2 * kOff ? kProven : kProbable};
  std::string like =
      fmt::format("{:.2g} bits too {}", std::abs(wrong.off), wrong.off > 0 ? "small" : "large");
  const Series* inverse = facts.find(staleness.place, "scale_inv_max");
  const auto inverse_now = inverse != nullptr ? inverse->at(read.iteration) : std::nullopt;
  if (inverse_now && *inverse_now > 0) {
    const double scale = -std::log2(*inverse_now);
    like = likeness(scale, scale + wrong.off, wrong.off);
    finding.evidence.push_back(
        {"scale_inv_max", staleness.place, read.iteration, *inverse_now, ""});
  }
  finding.summary =
      fmt::format("the scale corresponds to an amax of {:.3g}, the history to {:.3g}: {}",
                  std::exp2(read.stands_for), std::exp2(wrong.expected), like);
  finding.evidence.push_back(
      {"scale_staleness", staleness.place, read.iteration, read.staleness(), ""});
  finding.evidence.push_back({"cur_amax", staleness.place, reads[wrong.first - 1].iteration,
                              std::exp2(reads[wrong.first - 1].amax), "before"});
  return finding;
}

std::vector<Finding> find_wrong_scale(const Facts& facts) {
  std::vector<Finding> found;
  const bool whole_past = facts.first_iteration() == 0;
  for (const ScaleSeries& scales : scale_series(facts)) {
    const Series* amax = facts.find(scales.place, "cur_amax");
    auto wrong = first_wrong(scales.reads, *amax, whole_past && scales.knows_margin);
    if (!wrong) wrong = moved_for_good(scales.reads, *amax);
    if (wrong) found.push_back(wrong_scale_finding(facts, scales, *wrong));
  }
  return found;
}

}  // namespace

Rule wrong_scale() {
  return {.cause = "wrong_scale",
          .title = "scale that its amax history cannot produce",
          .doc =
              "The amax that corresponds to a scale must be between the newest and the largest "
              "amax of its history. If it is not, the scale was lost (set to 1), inverted, applied "
              "twice, loaded from elsewhere or overwritten. A scale that fits the tensor of the "
              "same iteration, as in current scaling, is correct.",
          .stage = Stage::scale,
          .required = {kScales, "cur_amax"},
          .optional = {"scale_headroom", "scale_inv_min", "scale_jump"},
          .recorded_by =
              "LogTensorStats (cur_amax) and ScaleHealth, or LogFp8TensorStats (scale_inv_min, "
              "scale_inv_max), every iteration",
          .alternatives = "An iteration with a much larger tensor that was not recorded.",
          .next_step =
              "telens plot RUN --layer '{layer}' --stat scale_staleness --stat scale_headroom; "
              "look for code that writes or loads the scale in fp8_meta",
          .find = find_wrong_scale};
}

}  // namespace telens::analysis
