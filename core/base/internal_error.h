// The exception for a broken invariant: a mistake of TELens itself. No LibTorch.
#pragma once

#include "core/base/error.h"

namespace telens {

// Never a caller's mistake, for which there is UsageError. Python sees telens.Error. The message
// says which invariant and with which values, for a bug report.
class TELENS_EXPORT InternalError : public Error {
 public:
  using Error::Error;
};

}  // namespace telens
