// The features of a session that look for problems of the run.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "hooks/finding_source.h"
#include "hooks/session/feature_set.h"

namespace telens::debug {

// All calls are thread-safe, except begin().
class FindingSources {
 public:
  // Called once. The features outlive it.
  void begin(const FeatureSet& features, const std::shared_ptr<Sink>& run_file);

  bool any() const { return !all_.empty(); }
  std::vector<Finding> findings() const;
  void listen(const FindingListener& listener);
  // Returns after examining everything up to this iteration, or after the timeout.
  bool allow_checkpoint(std::int64_t last, std::chrono::milliseconds wait) const;
  void rethrow_interruption();

 private:
  std::vector<FindingSource*> all_;
};

}  // namespace telens::debug
