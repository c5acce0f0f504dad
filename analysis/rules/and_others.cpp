#include <fmt/format.h>

#include <algorithm>

#include "analysis/rules/rules.h"

namespace telens::analysis {

std::string and_others(std::size_t others, std::string_view what) {
  if (others == 0) return "";
  // Pluralize the first word: "layers whose formats change".
  const std::size_t end = std::min(what.find(' '), what.size());
  return fmt::format(", and of {} other {}{}{}", others, what.substr(0, end),
                     others == 1 ? "" : "s", what.substr(end));
}

}  // namespace telens::analysis
