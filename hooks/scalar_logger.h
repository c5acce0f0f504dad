// Receives statistics in addition to the run file: a TensorBoard writer or a custom logger.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/error.h"

namespace telens::debug {

// Only called in step() and end_debug(), on the thread that calls those, in row order, with the
// iteration that a row belongs to. A logger that throws is reported once and not called again in
// that session; training continues.
class TELENS_EXPORT ScalarLogger {
 public:
  virtual ~ScalarLogger() = default;

  // name: "<layer>_<tensor>_<statistic>".
  virtual void log_scalar(std::string_view name, double value, std::int64_t iteration) = 0;
  virtual void flush() {}
};

}  // namespace telens::debug
