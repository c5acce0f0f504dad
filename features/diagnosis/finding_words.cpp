#include "features/diagnosis/finding_words.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/printable.h"
#include "core/base/shell_word.h"
#include "features/diagnosis/rules.h"

namespace telens::diagnosis {
namespace {

void replace_all(std::string& text, std::string_view what, const std::string& by) {
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
}

}  // namespace

std::string label_of(const Place& place, const Facts& facts) {
  std::string label = facts.layer_name(place.layer);
  if (label.empty()) label = "the whole run";
  if (place.tensor) label += fmt::format(" {}", telens::name_of(*place.tensor));
  if (place.gemm) label += fmt::format(" {}", telens::name_of(*place.gemm));
  if (place.rank != kAllRanks && facts.ranks() > 1) label += fmt::format(", rank {}", place.rank);
  return printable(label);
}

std::string iterations_of(const Finding& finding) {
  return finding.first == finding.last
             ? fmt::format("iteration {}", finding.first)
             : fmt::format("iterations {} to {}", finding.first, finding.last);
}

std::string next_step(const Finding& finding, const Facts& facts, const std::string& run) {
  std::string text(rule_of(finding.cause).next_step);
  replace_all(text, "RUN", shell_word(run));
  replace_all(text, "{layer}", facts.layer_name(finding.place.layer));
  replace_all(text, "{rank}", std::to_string(std::max(0, finding.place.rank)));
  return printable(text);
}

}  // namespace telens::diagnosis
