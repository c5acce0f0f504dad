// Where a user wants statistics besides the run file: a TensorBoard writer, a logger of one's own.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/error.h"

namespace telens::debug {

// Called in step() and end_debug() only, on the thread that calls those, in the order of the rows,
// with the iteration that a row belongs to. One that throws is told once and called no more in
// that session; training goes on.
class TELENS_EXPORT ScalarLogger {
 public:
  virtual ~ScalarLogger() = default;

  // name: "<layer>_<tensor>_<statistic>".
  virtual void log_scalar(std::string_view name, double value, std::int64_t iteration) = 0;
  virtual void flush() {}
};

}  // namespace telens::debug
