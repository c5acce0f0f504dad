#include <fmt/format.h>

#include <cctype>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "analysis/finding_json.h"
#include "analysis/rules.h"
#include "core/base/json.h"
#include "inspector_cli/report/diagnosis_text.h"

namespace telens::cli {
namespace {

std::string section(const diagnosis::Rule& rule) {
  return fmt::format("## {}\n\n{}.\n\n{}\n\n- Recorded by: {}.\n- Also possible: {}\n- Next: {}.\n",
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

std::string rules_json() {
  Json object;
  object["schema_version"] = diagnosis::kSchemaVersion;
  object["rules"] = Json::array();
  for (const diagnosis::Rule& rule : diagnosis::rules()) {
    Json each;
    for (const auto& [key, text] : {std::pair("cause", rule.cause),
                                    {"title", rule.title},
                                    {"doc", rule.doc},
                                    {"recorded_by", rule.recorded_by},
                                    {"alternatives", rule.alternatives},
                                    {"next_step", rule.next_step}}) {
      each[key] = json_text(text);
    }
    object["rules"].push_back(std::move(each));
  }
  return json_line(object) + "\n";
}

}  // namespace telens::cli
