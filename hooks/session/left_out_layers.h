// Layers for which calls are skipped because they only ran in evaluations.
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
  // Thread-safe.
  void note(const LayerRouting& routing);
  // At the end of an iteration: warns, once per session, if no layer of that name has trained.
  // While a training runs, skipping evaluations is intended; for a model that is only evaluated,
  // the run file would stay empty.
  void warn(EventLog& events);

 private:
  bool warned_ = false;  // only used by warn()

  // Guards the layers of the running iteration, each once, with whether it has run in a training
  // since.
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<std::atomic<bool>>> layers_;
};

}  // namespace telens::debug
