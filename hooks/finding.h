// Findings: problems of the run that features report.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace telens::debug {

struct Finding {
  std::string cause;  // a stable word, such as "nonfinite"
  std::string layer;  // "" if it does not concern a single layer
  std::int64_t first_iteration = 0;
  std::int64_t last_iteration = 0;  // last iteration in which it was seen
  double confidence = 0;            // 0 to 1
  // one line: the problem, its place, since when, and the next step
  std::string text;
  std::string json;  // an object; for Diagnosis, see docs/diagnosis.md
};

// Called on a thread of the feature, and may block as long as necessary. A listener that throws is
// reported once and not called again in that session.
using FindingListener = std::function<void(const Finding&)>;

}  // namespace telens::debug

namespace telens {

class Sink;

// A feature that looks for problems of the run, on its own thread. The session queries each feature
// for this interface. All calls are thread-safe, except begin().
class TELENS_EXPORT FindingSource {
 public:
  virtual ~FindingSource() = default;

  // Called once, before the first step, when the run file has begun.
  virtual void begin(std::shared_ptr<Sink> run_file) = 0;

  // Returns the findings in the order in which they were found.
  virtual std::vector<debug::Finding> findings() const = 0;

  virtual void listen(debug::FindingListener listener) = 0;

  // Examines everything up to this iteration, and waits at most `wait` for that. On a thread that
  // itself examines, as in a listener, it does nothing.
  virtual void look_now(std::int64_t last, std::chrono::milliseconds wait) = 0;

  // Returns false if a finding forbids saving the weights. With several ranks, the same on all
  // ranks.
  virtual bool allows_checkpoints() const = 0;
  // Returns true if allows_checkpoints() may ever return false.
  virtual bool may_veto() const = 0;

  // Returns the interruption of a listener (core/base/error.h) since the last call; or null.
  virtual std::exception_ptr take_interruption() = 0;
};

}  // namespace telens
