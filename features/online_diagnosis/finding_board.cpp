#include "features/online_diagnosis/finding_board.h"

#include <algorithm>

#include "core/base/error.h"
#include "hooks/feature_failure.h"

namespace telens::features {
namespace {

debug::Finding make_finding(const analysis::LiveFinding& found) {
  return {.cause = found.cause,
          .layer = found.layer,
          .first_iteration = found.first,
          .last_iteration = found.last,
          .confidence = found.confidence,
          .text = found.text,
          .json = found.json};
}

}  // namespace

void FindingBoard::look(analysis::LiveLook& run, std::int64_t last) {
  analysis::LiveLook::Request request{.last = last};
  {
    const std::lock_guard lock(mutex_);
    if (is_off_) return;
    request.since = since_;
    request.at_end = at_end_;
  }
  analysis::LiveFindings seen;
  try {
    seen = run.look(request);
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    is_off_ = true;
    news_.failure = error.what();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    vetoes_now_ = seen.vetoes;
    for (const analysis::LiveFinding& each : seen.found) {
      vetoes_for_good_ = vetoes_for_good_ || each.action >= analysis::Action::veto;
      findings_.push_back(make_finding(each));
      news_.found.push_back(each);
    }
  }
  tell(seen.found);
}

void FindingBoard::tell_since(std::int64_t iteration) {
  const std::lock_guard lock(mutex_);
  since_ = iteration;
}

void FindingBoard::expect_the_end() {
  const std::lock_guard lock(mutex_);
  at_end_ = true;
}

void FindingBoard::listen(debug::FindingListener listener) {
  const std::lock_guard lock(mutex_);
  listeners_.push_back(std::make_shared<const debug::FindingListener>(std::move(listener)));
}

std::vector<debug::Finding> FindingBoard::findings() const {
  const std::lock_guard lock(mutex_);
  return findings_;
}

bool FindingBoard::vetoes() const {
  const std::lock_guard lock(mutex_);
  return vetoes_for_good_ || vetoes_now_;
}

FindingBoard::News FindingBoard::take_news() {
  const std::lock_guard lock(mutex_);
  News news = std::exchange(news_, {});
  news.findings = findings_.size();
  return news;
}

std::exception_ptr FindingBoard::take_interruption() {
  const std::lock_guard lock(mutex_);
  return std::exchange(interruption_, nullptr);
}

void FindingBoard::tell(const std::vector<analysis::LiveFinding>& found) {
  for (const analysis::LiveFinding& each : found) {
    const std::vector<Listener> listeners = [this] {
      const std::lock_guard lock(mutex_);
      return listeners_;
    }();
    for (const Listener& listener : listeners) call(listener, make_finding(each));
  }
}

// An interruption is kept for the training's thread. A listener that fails is removed.
void FindingBoard::call(const Listener& listener, const debug::Finding& finding) {
  try {
    (*listener)(finding);
  } catch (const Interruption&) {
    const std::lock_guard lock(mutex_);
    interruption_ = std::current_exception();
  } catch (const std::exception&) {
    const std::string why = message_of_current_exception();
    const std::lock_guard lock(mutex_);
    std::erase(listeners_, listener);
    news_.failed_listeners.push_back(why);
  }
}

}  // namespace telens::features
