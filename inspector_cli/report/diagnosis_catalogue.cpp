#include <fmt/format.h>

#include <cctype>

#include "features/diagnosis/rules.h"
#include "inspector_cli/report/diagnosis_text.h"

namespace telens::cli {
namespace {

std::string section(const diagnosis::Rule& rule) {
  return fmt::format("## {}\n\n{}.\n\n{}\n\n- Recorded by: {}.\n- Or else: {}\n- Next: {}.\n",
                     rule.cause,
                     std::string(1, static_cast<char>(std::toupper(rule.title.front()))) +
                         std::string(rule.title.substr(1)),
                     rule.doc, rule.recorded_by, rule.alternatives, rule.next_step);
}

}  // namespace

std::string rules_markdown() {
  std::string text;
  for (const diagnosis::Rule& rule : diagnosis::rules()) {
    text += (text.empty() ? "" : "\n") + section(rule);
  }
  return text;
}

}  // namespace telens::cli
