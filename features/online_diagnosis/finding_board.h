// The findings of the thread that looks at a run: it writes them down here, the session's threads
// read them.
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

// Any thread.
class FindingBoard {
 public:
  // Looks, writes down what is found and calls the listeners; never throws. After a run that cannot
  // be read it looks no more.
  void look(analysis::LiveLook& run, std::int64_t last);

  // Findings that ended before this iteration are not told.
  void tell_since(std::int64_t iteration);
  // The look that comes next is the last one.
  void expect_the_end();

  void listen(debug::FindingListener listener);
  std::vector<debug::Finding> findings() const;

  // True if the weights may not be kept: because of something that was found with such an action,
  // or of what the last look saw.
  bool vetoes() const;

  // All that came since the last call.
  struct News {
    std::vector<analysis::LiveFinding> found = {};
    std::vector<std::string> failed_listeners = {};  // why
    std::string failure = {};                        // why the run is looked at no more
    std::size_t findings = 0;                        // all that there are
  };
  News take_news();
  // The interruption of a listener; null: none.
  std::exception_ptr take_interruption();

 private:
  using Listener = std::shared_ptr<const debug::FindingListener>;
  void tell(const std::vector<analysis::LiveFinding>& found);
  void call(const Listener& listener, const debug::Finding& finding);

  mutable std::mutex mutex_;  // over what follows; nothing is called under it
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
