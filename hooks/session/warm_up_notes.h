// Tells the run file in which iterations a layer's delayed scaling has no amax history yet: then
// the scale is 1, and what a cast loses says nothing about how FP8 fits.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "core/quantization/quantizer.h"
#include "hooks/session/event_log.h"

namespace telens::debug {

class WarmUpNotes {
 public:
  // A history that is never updated, as in evaluation alone, is told for this many iterations:
  // after that it is no warm-up.
  static constexpr int kMost = 16;

  explicit WarmUpNotes(EventLog& events) : events_(events) {}

  // A tensor of the layer is seen that this quantizer casts; nullptr: none does. Any thread; once
  // there is a history it costs one comparison.
  void see(std::string_view layer_name, std::int64_t iteration, const Quantizer* quantizer) {
    if (quantizer == nullptr || quantizer->history_updates() != 0) return;
    note(layer_name, iteration);
  }

 private:
  struct Noted {
    std::int64_t iteration = -1;
    int times = 0;
  };
  void note(std::string_view layer_name, std::int64_t iteration);

  EventLog& events_;
  std::mutex mutex_;
  std::map<std::string, Noted, std::less<>> noted_;  // by layer
};

}  // namespace telens::debug
