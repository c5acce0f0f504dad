// Names of precisions, as the ledger has them.
#pragma once

#include <string_view>

namespace telens::diagnosis {

// "BF16", "FP32" and the like; another name is that of a cast.
bool is_high_precision(std::string_view precision);

}  // namespace telens::diagnosis
