#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/baseline.h"
#include "analysis/rules/rules.h"
#include "analysis/rules/scale_reads.h"

namespace telens::analysis {
namespace {

constexpr double kMinOffset = 1.5;        // bits; rounding to a power of two is off by less than 1
constexpr double kMinOffsetAfterGap = 4;  // bits, if iterations are missing
// Bits, if only one or two reads are off: the newest amax may belong to a smaller micro-batch.
constexpr double kMinBriefOffset = 4;
constexpr std::size_t kMaxBriefReads = 2;

// Returns the bits by which the scales of an iteration are outside of the range of the earlier
// amaxes: negative below the newest amax, positive above the largest, 0 if within kMinOffset. A
// scale that fits the current tensor is correct, however it was computed.
double get_offset(const ScaleRead& read, const ScaleRead& before, double largest_before) {
  const double limit = read.iteration == before.iteration + 1 ? kMinOffset : kMinOffsetAfterGap;
  if (std::abs(read.staleness()) < limit) return 0;
  const double above = read.scale_amax - read.span - largest_before;
  const double below = read.scale_amax + read.span - before.amax;
  if (above > limit) return above;
  return below < -limit ? below : 0;
}

// Describes how a scale differs from the expected scale. All arguments are log2.
std::string describe_scale(double scale, double expected, double off) {
  constexpr double kNear = 1;  // bits
  constexpr double kFar = 2;   // bits
  if (std::abs(scale) < 0.01 && std::abs(expected) > kNear) {
    return "it is 1, so it was probably lost";
  }
  if (std::abs(expected) > kFar && std::abs(scale + expected) < kNear) {
    return "it is the inverse of the expected scale";
  }
  if (std::abs(expected) > kFar && std::abs(scale - 2 * expected) < kNear) {
    return "it appears to be applied twice";
  }
  return fmt::format("it is {:.2g} bits too {}", std::abs(off), off > 0 ? "small" : "large");
}

struct WrongScale {
  std::size_t first = 0, last = 0;  // indices of reads
  std::size_t reads = 0;            // number of wrong reads
  double off = 0;                   // bits, see get_offset
  double expected = 0;              // log2 of the amax
};

// Returns the reads whose scale is far outside of the range of the earlier amaxes.
// `has_whole_past`: the run recorded the history from its start.
std::optional<WrongScale> find_first_wrong(const std::vector<ScaleRead>& reads, const Series& amax,
                                           bool has_whole_past) {
  const std::vector<double> largest = largest_amaxes(reads, amax);
  std::optional<WrongScale> wrong;
  for (std::size_t i = 1; i < reads.size(); ++i) {
    const double off = get_offset(reads[i], reads[i - 1], largest[i - 1]);
    if (off == 0) {
      const bool is_brief =
          wrong && wrong->reads <= kMaxBriefReads && std::abs(wrong->off) < kMinBriefOffset;
      if (is_brief) wrong.reset();
      continue;
    }
    // A resumed history may contain amaxes from before the recorded iterations. Then require that
    // the scale changes.
    const bool has_changed = std::abs(reads[i].scale_amax - reads[i - 1].scale_amax) > kMinOffset;
    if (!wrong && !has_changed && !has_whole_past) continue;
    if (!wrong) {
      wrong = WrongScale{
          .first = i, .off = off, .expected = off > 0 ? largest[i - 1] : reads[i - 1].amax};
    }
    wrong->last = i;
    ++wrong->reads;
  }
  if (wrong && wrong->reads <= kMaxBriefReads && std::abs(wrong->off) < kMinBriefOffset)
    return std::nullopt;
  return wrong;
}

// Detects a scale that leaves the range of the earlier amaxes by less than kMinOffset and stays
// outside. Subtracts the largest earlier distance, which may be due to amaxes of evaluations: these
// are not recorded.
std::optional<WrongScale> find_small_offset(const std::vector<ScaleRead>& reads,
                                            const Series& amax) {
  constexpr std::size_t kMinPastReads = 5;
  constexpr std::size_t kMinSustainedReads = 4;
  // Bits; a factor of 2 is 1 bit, minus the variation of the amaxes.
  constexpr double kMinShift = 0.6;
  const std::vector<double> largest = largest_amaxes(reads, amax);
  std::vector<double> below(reads.size()), above(reads.size());
  for (std::size_t i = 1; i < reads.size(); ++i) {
    below[i] = reads[i - 1].amax - reads[i].scale_amax - reads[i].span;
    above[i] = reads[i].scale_amax - reads[i].span - largest[i - 1];
  }
  double most_below = 0, most_above = 0;  // bits, in the reads before
  for (std::size_t i = 2; i + kMinSustainedReads <= reads.size(); ++i) {
    most_below = std::max(most_below, below[i - 1]);
    most_above = std::max(most_above, above[i - 1]);
    if (i <= kMinPastReads) continue;
    const auto jump = reads[i].scale_amax - reads[i - 1].scale_amax;
    if (std::abs(jump) < kMinShift) continue;
    // A scale that fits the tensor of the same iteration is correct.
    if (std::abs(reads[i].staleness()) < kMinShift) continue;
    const std::vector<double>& off = jump < 0 ? below : above;
    const double usual = jump < 0 ? most_below : most_above;
    const auto stays = [&](double each) { return each > usual + kMinShift; };
    if (!std::all_of(&off[i], &off[i] + kMinSustainedReads, stays)) continue;
    return WrongScale{.first = i,
                      .last = i + kMinSustainedReads - 1,
                      .reads = kMinSustainedReads,
                      .off = jump < 0 ? -off[i] : off[i],
                      .expected = jump < 0 ? reads[i - 1].amax : largest[i - 1]};
  }
  return std::nullopt;
}

Finding wrong_scale_finding(const Facts& facts, const ScaleSeries& staleness,
                            const WrongScale& wrong) {
  const std::vector<ScaleRead>& reads = staleness.reads;
  const ScaleRead& read = reads[wrong.first];
  Finding finding{
      .cause = "wrong_scale",
      .place = staleness.place,
      .first = read.iteration,
      .last = reads[wrong.last].iteration,
      .confidence = wrong.reads > 1 || std::abs(wrong.off) > 2 * kMinOffset ? kProven : kProbable};
  std::string description = fmt::format("it is {:.2g} bits too {}", std::abs(wrong.off),
                                        wrong.off > 0 ? "small" : "large");
  const Series* inverse = facts.find(staleness.place, "scale_inv_max");
  const auto inverse_now = inverse != nullptr ? inverse->at(read.iteration) : std::nullopt;
  if (inverse_now && *inverse_now > 0) {
    const double scale = -std::log2(*inverse_now);
    description = describe_scale(scale, scale + wrong.off, wrong.off);
    finding.evidence.push_back(
        {"scale_inv_max", staleness.place, read.iteration, *inverse_now, ""});
  }
  finding.summary = fmt::format(
      "the scale corresponds to an amax of {:.3g}, but the amax history gives {:.3g}: {}",
      std::exp2(read.scale_amax), std::exp2(wrong.expected), description);
  finding.evidence.push_back(
      {"scale_staleness", staleness.place, read.iteration, read.staleness(), ""});
  finding.evidence.push_back({"cur_amax", staleness.place, reads[wrong.first - 1].iteration,
                              std::exp2(reads[wrong.first - 1].amax), "before"});
  return finding;
}

std::vector<Finding> find_wrong_scale(const Facts& facts) {
  std::vector<Finding> found;
  const bool has_whole_past = facts.first_iteration() == 0;
  for (const ScaleSeries& scales : scale_series(facts)) {
    const Series* amax = facts.find(scales.place, "cur_amax");
    auto wrong = find_first_wrong(scales.reads, *amax, has_whole_past && scales.has_margin);
    if (!wrong) wrong = find_small_offset(scales.reads, *amax);
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
