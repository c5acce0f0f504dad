// How a file is refused that is not made as a run file is.
#pragma once

#include <string_view>

#include "core/base/error.h"

namespace telens::record {

[[noreturn]] inline void refuse(std::string_view object, std::string_view expected,
                                std::string_view came) {
  raise<RecordError>("{}: expected {}, came {}", object, expected, came);
}

}  // namespace telens::record
