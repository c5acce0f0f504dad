// The loss of a run that is trusted, which others are held against.
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
  // Throws UsageError where the run has no loss, or one that is not finite; RecordError.
  LossReference(std::string path, double tolerance);

  // Compares the means over the last tenth of the iterations that both have (one at least). A run
  // passes whose mean is at most `tolerance` times the reference's magnitude above it, and all of
  // whose losses are finite. Throws UsageError where it recorded no loss.
  LossVerdict judge(const std::string& log_dir) const;

 private:
  std::string path_;
  double tolerance_;
  std::vector<diagnosis::Point> losses_;  // by iteration
};

}  // namespace telens::cli
