#include <fmt/format.h>

#include "analysis/rules/rules.h"

namespace telens::analysis {

std::string and_others(std::size_t others, std::string_view what) {
  if (others == 0) return "";
  return fmt::format("; also affects {} other {}{}", others, what, others == 1 ? "" : "s");
}

}  // namespace telens::analysis
