// The features of a session that find out what is wrong with the run.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "hooks/finding_source.h"
#include "hooks/session/feature_set.h"

namespace telens::debug {

// Any thread, but for begin().
class FindingSources {
 public:
  // Once. The features live longer.
  void begin(const FeatureSet& features, const std::shared_ptr<Sink>& run_file);

  bool any() const { return !all_.empty(); }
  std::vector<Finding> findings() const;
  void listen(const FindingListener& listener);
  // After a look at everything up to this iteration, or after so long.
  bool allow_checkpoint(std::int64_t last, std::chrono::milliseconds wait) const;
  void rethrow_interruption();

 private:
  std::vector<FindingSource*> all_;
};

}  // namespace telens::debug
