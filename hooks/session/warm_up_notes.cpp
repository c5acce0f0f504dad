#include "hooks/session/warm_up_notes.h"

namespace telens::debug {

void WarmUpNotes::note(std::string_view layer_name, std::int64_t iteration) {
  {
    const std::lock_guard lock(mutex_);
    auto found = noted_.find(layer_name);
    if (found == noted_.end()) found = noted_.try_emplace(std::string(layer_name)).first;
    Noted& noted = found->second;
    if (noted.iteration == iteration || noted.times == kMost) return;
    noted = {iteration, noted.times + 1};
  }
  events_.mark(iteration, "warm_up", "delayed scaling has no amax history yet: the scale is 1",
               layer_name);
}

}  // namespace telens::debug
