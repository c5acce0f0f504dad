// Layers of which something is left out since they only ran in evaluations.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "hooks/session/event_log.h"
#include "hooks/session/layer_routing.h"

namespace telens::debug {

class LeftOutLayers {
 public:
  // Any thread.
  void note(const LayerRouting& routing);
  // At the end of an iteration: warns, once a session, where no layer of that name has trained.
  // Where a training goes on, evaluations are left out on purpose; of a model that is only
  // evaluated the run file would stay empty.
  void warn(EventLog& events);

 private:
  bool warned_ = false;  // used by warn() alone

  std::mutex mutex_;  // over what follows
  // The layers of the running iteration, each once, and whether it has run in a training meanwhile.
  std::map<std::string, std::shared_ptr<std::atomic<bool>>> layers_;
};

}  // namespace telens::debug
