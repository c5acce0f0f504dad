// The loss of a trusted run, to which trials are compared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/series.h"

namespace telens::cli {

struct LossVerdict {
  bool passed = false;
  std::string text;  // "loss 3.21, reference 2.4"
};

class LossReference {
 public:
  // Throws UsageError if the run does not contain losses or contains a non-finite one, RecordError
  // if it cannot be read.
  LossReference(std::string path, double tolerance);

  // Compares the mean losses of the last tenth of the common iterations (at least one). A run
  // passes if all its losses are finite and its mean exceeds the reference by at most `tolerance`
  // times the reference's magnitude. Throws UsageError without a common iteration.
  LossVerdict judge(const std::string& log_dir) const;

 private:
  std::string path_;
  double tolerance_;
  std::vector<diagnosis::Point> losses_;  // by iteration
};

}  // namespace telens::cli
