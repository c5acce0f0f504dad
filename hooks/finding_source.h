// A feature that finds out what is wrong with the run, on a thread of its own. The session asks
// each feature whether it is one.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "core/base/error.h"
#include "hooks/finding.h"
#include "hooks/sink.h"

namespace telens {

// Any thread may call, but for begin().
class TELENS_EXPORT FindingSource {
 public:
  virtual ~FindingSource() = default;

  // Once, before the first step: the run file has begun.
  virtual void begin(std::shared_ptr<Sink> run_file) = 0;

  // In the order in which they were found.
  virtual std::vector<debug::Finding> findings() const = 0;

  virtual void listen(debug::FindingListener listener) = 0;

  // Looks at everything up to this iteration, and waits for that, so long at the most. On a thread
  // that looks itself, as in a listener, it does nothing.
  virtual void look_now(std::int64_t last, std::chrono::milliseconds wait) = 0;

  // False: something was found that forbids to keep the weights. Of several ranks the same on all.
  virtual bool allows_checkpoints() const = 0;
  // True if it ever may not.
  virtual bool may_veto() const = 0;

  // The interruption of a listener (core/base/error.h) since the last call; or null.
  virtual std::exception_ptr take_interruption() = 0;
};

}  // namespace telens
