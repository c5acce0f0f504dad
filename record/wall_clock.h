// Times in run files.
#pragma once

#include <chrono>

namespace telens::record {

inline double seconds_since_1970() {
  using Seconds = std::chrono::duration<double>;
  return Seconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace telens::record
