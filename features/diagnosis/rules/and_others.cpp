#include <fmt/format.h>

#include "features/diagnosis/rules/rules.h"

namespace telens::diagnosis {

std::string and_others(std::size_t others, std::string_view what) {
  if (others == 0) return "";
  return fmt::format(", and of {} other {}{}", others, what, others == 1 ? "" : "s");
}

}  // namespace telens::diagnosis
