// Numbers as people read them.
#pragma once

#include <string>

namespace telens::cli {

// "0.1235", "1e+20", "inf"; "nan" for a NaN of either sign, since its sign means nothing.
std::string number_text(double value, int significant_digits = 4);

}  // namespace telens::cli
