#include "inspector_cli/terminal/number_text.h"

#include <fmt/format.h>

#include <cmath>

namespace telens::cli {

std::string number_text(double value, int significant_digits) {
  return std::isnan(value) ? "nan" : fmt::format("{:.{}g}", value, significant_digits);
}

}  // namespace telens::cli
