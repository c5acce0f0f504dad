// Which values of a statistic are bad ones.
#pragma once

#include <string_view>

namespace telens::cli {

// How bad the worst of the values between these two is; comparable among those of one statistic.
double badness(std::string_view statistic, double lowest, double highest);

}  // namespace telens::cli
