// Records in the run file the iterations in which a layer's delayed scaling does not have an amax
// history yet: in these the scale is 1, and the losses of a cast do not show how well FP8 fits.
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
  // A history that is never updated, for example if the model is only evaluated, is recorded for
  // this many iterations; after that it is not a warm-up.
  static constexpr int kMost = 16;

  explicit WarmUpNotes(EventLog& events) : events_(events) {}

  // Notes a tensor of the layer that this quantizer casts; nullptr if none does. Any thread; once a
  // history exists, it costs one comparison.
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
  std::map<std::string, Noted, std::less<>> noted_;  // keyed by layer
};

}  // namespace telens::debug
