#include "analysis/finding_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "analysis/rules.h"
#include "core/base/text.h"

namespace telens::analysis {
namespace {

void replace_all(std::string& text, std::string_view what, const std::string& by) {
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
}

std::string filled_in(std::string_view step, const Finding& finding, const Facts& facts,
                      const std::string& run) {
  std::string text(step);
  replace_all(text, "RUN", shell_word(run));
  replace_all(text, "{layer}", facts.layer_name(finding.place.layer));
  replace_all(text, "{rank}", std::to_string(std::max(0, finding.place.rank)));
  return printable(text);
}

}  // namespace

std::string make_label(const Place& place, const Facts& facts) {
  std::string label = facts.layer_name(place.layer);
  if (label.empty()) label = "the whole run";
  if (place.tensor) label += fmt::format(" {}", telens::get_name(*place.tensor));
  // A wgrad tensor always belongs to the wgrad GEMM.
  const bool is_named_so = place.gemm && place.tensor &&
                           telens::get_name(*place.tensor) == telens::get_name(*place.gemm);
  if (place.gemm && !is_named_so) label += fmt::format(" {}", telens::get_name(*place.gemm));
  if (place.rank != kAllRanks && facts.ranks() > 1) label += fmt::format(", rank {}", place.rank);
  return printable(label);
}

std::string get_iterations(const Finding& finding) {
  return finding.first == finding.last
             ? fmt::format("iteration {}", finding.first)
             : fmt::format("iterations {} to {}", finding.first, finding.last);
}

std::vector<std::string> next_steps(const Finding& finding, const Facts& facts,
                                    const std::string& run) {
  constexpr std::string_view kBetween = "; ";
  std::string_view left =
      finding.next_step.empty() ? find_rule(finding.cause).next_step : finding.next_step;
  std::vector<std::string> steps;
  for (;;) {
    const std::size_t end = left.find(kBetween);
    steps.push_back(filled_in(left.substr(0, end), finding, facts, run));
    if (end == std::string_view::npos) return steps;
    left.remove_prefix(end + kBetween.size());
  }
}

std::string next_step(const Finding& finding, const Facts& facts, const std::string& run) {
  return fmt::format("{}", fmt::join(next_steps(finding, facts, run), "; "));
}

}  // namespace telens::analysis
