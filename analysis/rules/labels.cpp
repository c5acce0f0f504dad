#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/rules/rules.h"
#include "analysis/rules/scalar_reads.h"

namespace telens::analysis {
namespace {

// The position of a label's token minus the position that predicts it: 1 in next-token prediction.
constexpr std::string_view kOffset = "label_offset";
constexpr std::string_view kVisible = "visible_labels%";

// Percent of the labels. In correct masks no label is visible; a prefix that is visible as a whole
// has no labels.
constexpr double kMinVisible = 5;
constexpr std::size_t kMinLabelReads = 2;

struct LabelReads {
  std::vector<Point> offsets;  // reads that the rule accepts
  double visible = 0;          // percent, in the first read
  bool is_visible_known = false;
};

// Returns the reads that satisfy `accepts(offset, visible)`. Returns nullopt unless they are at
// least kMinLabelReads and more than half of all reads.
template <typename Accepts>
std::optional<LabelReads> select_reads(const Facts& facts, const Scalars& offsets,
                                       const Accepts& accepts) {
  const Scalars* visible = scalar_beside(facts, offsets, kVisible);
  LabelReads reads;
  for (const Point& offset : offsets.points) {
    const auto seen = visible != nullptr ? value_at(*visible, offset.iteration) : std::nullopt;
    if (!accepts(offset.value, seen)) continue;
    if (reads.offsets.empty()) {
      reads.visible = seen.value_or(0);
      reads.is_visible_known = seen.has_value();
    }
    reads.offsets.push_back(offset);
  }
  const std::size_t found = reads.offsets.size();
  if (found < kMinLabelReads || 2 * found <= offsets.points.size()) return std::nullopt;
  return reads;
}

Finding make_label_finding(const Facts& facts, std::string_view cause, int rank,
                           const LabelReads& reads, std::string summary) {
  const Point& first = reads.offsets.front();
  Finding finding{
      .cause = cause,
      .place = {.rank = rank},
      .first = first.iteration,
      .last = facts.last_iteration(),
      .confidence = kProven,
      .summary = std::move(summary),
      .evidence = {{std::string(kOffset), {.rank = rank}, first.iteration, first.value, ""},
                   {std::string(kOffset), {.rank = rank}, first.iteration, 1, "expected"}}};
  if (reads.is_visible_known) {
    finding.evidence.push_back(
        {std::string(kVisible), {.rank = rank}, first.iteration, reads.visible, ""});
  }
  return finding;
}

std::vector<Finding> find_wrong_labels(const Facts& facts) {
  for (const Scalars* offsets : scalars_named(facts, kOffset)) {
    const auto twice =
        select_reads(facts, *offsets, [](double offset, auto) { return offset == 2; });
    if (twice) {
      return {make_label_finding(facts, "wrong_labels", offsets->rank, *twice,
                                 "each position is trained to predict the token after the next: "
                                 "the labels are shifted twice")};
    }
    const auto never = select_reads(facts, *offsets, [](double offset, auto visible) {
      return offset == 0 && visible && *visible == 0;
    });
    if (never) {
      return {make_label_finding(facts, "wrong_labels", offsets->rank, *never,
                                 "each position is trained to predict its own token, although "
                                 "attention is causal: the labels are not shifted")};
    }
  }
  return {};
}

std::vector<Finding> find_label_leak(const Facts& facts) {
  for (const Scalars* offsets : scalars_named(facts, kOffset)) {
    const auto leak = select_reads(facts, *offsets, [](double offset, auto visible) {
      return offset == 1 && visible && *visible >= kMinVisible;
    });
    if (!leak) continue;
    return {make_label_finding(
        facts, "label_leak", offsets->rank, *leak,
        fmt::format("attention sees the tokens to predict: the next token is visible for {:.3g} % "
                    "of the labels",
                    leak->visible))};
  }
  return {};
}

}  // namespace

Rule wrong_labels() {
  return {
      .cause = "wrong_labels",
      .title = "labels shifted by the wrong number of positions",
      .doc =
          "At least 95 % of the labels equal the token after the next, as if both the data and the "
          "loss shifted them; or they equal the token at their own position although all "
          "attentions are causal. Labels of masked tokens, of classes or of several predicted "
          "tokens do not match one offset and are not judged. Visible in the first step; needs a "
          "second read.",
      .stage = Stage::setup,
      .scalars = {kOffset},
      .needs_optimizer = true,
      .recorded_by = "telens.watch, of a model with embeddings that calls torch's cross_entropy",
      .alternatives = "A head that predicts the token after the next on purpose.",
      .next_step =
          "print input_ids[0, :8] and the labels that the loss compares with logits[0, :8]; shift "
          "the labels either in the data or in the model",
      .find = find_wrong_labels};
}

Rule label_leak() {
  return {
      .cause = "label_leak",
      .title = "attention sees the tokens to predict",
      .doc =
          "Labels are the next tokens, and every attention of the forward sees the next position "
          "for at least 5 % of the labels, so the loss falls toward zero without learning. "
          "An encoder, or a prefix without labels, is not reported. Visible in the first step; "
          "needs a second read.",
      .stage = Stage::setup,
      .scalars = {kVisible},
      .needs_optimizer = true,
      .recorded_by =
          "telens.watch, of a model with embeddings that calls torch's cross_entropy and "
          "scaled_dot_product_attention",
      .alternatives = "None is known.",
      .next_step =
          "pass is_causal=True, or print the mask's first rows: row i must not see column i + 1",
      .find = find_label_leak};
}

}  // namespace telens::analysis
