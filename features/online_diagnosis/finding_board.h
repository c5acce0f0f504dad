// Findings of the look thread. The thread adds them, and the session's threads read them.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "analysis/live_look.h"
#include "hooks/finding.h"

namespace telens::features {

// Thread-safe.
class FindingBoard {
 public:
  // Runs a look, stores new findings and calls the listeners. Never throws. Does nothing after a
  // run could not be read.
  void look(analysis::LiveLook& run, std::int64_t last);

  // Findings that ended before this iteration are not reported.
  void tell_since(std::int64_t iteration);
  // Marks the next look as the last.
  void expect_the_end();

  void listen(debug::FindingListener listener);
  std::vector<debug::Finding> findings() const;

  // Returns true if the weights must not be saved, because of an earlier finding with this action
  // or the result of the last look.
  bool vetoes() const;

  // Everything since the last call.
  struct News {
    std::vector<analysis::LiveFinding> found = {};
    std::vector<std::string> failed_listeners = {};  // why
    std::string failure = {};                        // why looks ended
    std::size_t findings = 0;                        // total
  };
  News take_news();
  // Returns the interruption of a listener, or nullptr if there is none.
  std::exception_ptr take_interruption();

 private:
  using Listener = std::shared_ptr<const debug::FindingListener>;
  void tell(const std::vector<analysis::LiveFinding>& found);
  void call(const Listener& listener, const debug::Finding& finding);

  mutable std::mutex mutex_;  // guards the members below; no callback runs under it
  std::vector<debug::Finding> findings_;
  std::vector<Listener> listeners_;
  News news_;
  std::exception_ptr interruption_;
  bool vetoes_for_good_ = false;
  bool vetoes_now_ = false;
  std::int64_t since_ = INT64_MIN;
  bool at_end_ = false;
  bool is_off_ = false;
};

}  // namespace telens::features
