#include "hooks/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/distributed/process_group.h"
#include "record/rows/tables.h"

namespace telens {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

// First lines of decisions. After the first line, a refusal contains the rank and its time in
// milliseconds; a decision without some ranks contains a run id and the missing ranks.
constexpr std::string_view kAll = "all";
constexpr std::string_view kRefused = "refused";
constexpr std::string_view kAlone = "alone";

[[noreturn]] void raise_refused(int rank) {
  raise<UsageError>(
      "debug.initialize: rank {} refused; all ranks must accept it. Fix the error that this rank "
      "reports",
      rank);
}

std::int64_t to_seconds(milliseconds time) { return std::chrono::ceil<seconds>(time).count(); }

// The wall clock that all hosts share, for times that may be seconds off.
std::int64_t time_of_day() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<milliseconds>(now).count();
}

// One rank's participation in one rendezvous, in the store of a world.
class StoreRendezvous {
 public:
  StoreRendezvous(RankGroup& world, std::shared_ptr<RankStore> store)
      : store_(std::move(store)),
        rank_(world.rank()),
        size_(world.size()),
        wait_(world.longest_wait()) {
    before_ = store_->add(last(), 0);
    number_ = before_ + 1;
    while (is_over()) ++number_;
  }

  void refuse() noexcept {
    try {
      take_part();
      propose(fmt::format("{}\n{}\n{}", kRefused, rank_, time_of_day()));
    } catch (const std::exception&) {
      // The caller already has an error to report. The other ranks treat this rank as missing.
    }
  }

  // Returns true if other ranks have arrived and no decision has been made yet.
  bool is_waited_for() { return store_->has(key("count")) && !is_decided(); }

  std::string join(const RendezvousOptions& options) {
    take_part();
    if (is_decided()) return decision();
    store_->set(key(rank_), "came");
    try {
      wait_for_decision(options);
    } catch (...) {
      refuse();  // the other ranks must not begin with a rank that leaves
      throw;
    }
    store_->remove(key(rank_));
    return decision();
  }

  Attendance parse_alone(const std::string& text) const {
    Attendance attendance{.is_complete = false};
    std::istringstream lines(text.substr(kAlone.size() + 1));
    std::getline(lines, attendance.run_id);
    for (int rank = 0; lines >> rank;) attendance.missing.push_back(rank);
    const std::vector<int>& missing = attendance.missing;
    while (std::ranges::find(missing, attendance.first) != missing.end()) ++attendance.first;
    attendance.explanation = explain(missing);
    attendance.presence = begin_presence();
    return attendance;
  }

 private:
  std::string last() const { return fmt::format("telens/begin/last/{}", rank_); }
  // Takes part in this rendezvous: this rank's next one has a larger number.
  void take_part() {
    store_->add(last(), number_ - before_);
    before_ = number_;
  }
  template <typename Name>
  std::string key(const Name& name) const {
    return fmt::format("telens/begin/{}/{}", number_, name);
  }
  // Does nothing if a decision exists already.
  void propose(const std::string& text) { store_->set_if_missing(key("decision"), text); }
  bool is_decided() { return store_->has(key("decision")); }
  std::string decision() { return store_->get(key("decision")); }

  bool is_over() {
    if (!is_decided()) return false;
    std::istringstream lines(decision());
    std::string kind;
    lines >> kind;
    if (kind == kAlone) return store_->has(key("ended"));
    if (kind != kRefused) return false;
    int rank = 0;
    std::int64_t time = 0;
    lines >> rank >> time;
    return time_of_day() - time > wait_.count();
  }

  void wait_for_decision(const RendezvousOptions& options) {
    if (store_->add(key("count"), 1) == size_) return propose(std::string(kAll));
    const milliseconds silent = std::min(kSilentWait, wait_ / 2);
    if (is_decided_within(silent, options)) return;
    if (leads()) tell_of_wait(options);
    if (is_decided_within(wait_ - silent, options)) return;
    // Only the leading rank checks for every other rank; the rest only do so if the leading rank is
    // gone.
    if (!leads() && is_decided_within(silent, options)) return;
    const std::vector<int> missing = find_missing();
    // The last rank may have arrived meanwhile.
    propose(missing.empty()
                ? std::string(kAll)
                : fmt::format("{}\n{}\n{}", kAlone, options.name_run(), fmt::join(missing, " ")));
  }

  void tell_of_wait(const RendezvousOptions& options) {
    const std::vector<int> missing = find_missing();
    // Ranks that have a decision remove their keys.
    if (missing.empty() || is_decided()) return;
    options.on_wait(fmt::format(
        "debug.initialize waits for {} of {}, and every rank has to call it; after {} s the other "
        "ranks start without cross-rank reduction",
        describe_ranks(missing), size_, to_seconds(wait_ - std::min(kSilentWait, wait_ / 2))));
  }

  // Polls: a wait of c10d's stores writes lines to stderr for each timeout, and compareSet() does
  // not wake up the wait of every store.
  bool is_decided_within(milliseconds time, const RendezvousOptions& options) {
    const Clock::time_point begin = Clock::now();
    for (Clock::time_point now = begin; now < begin + time; now = Clock::now()) {
      if (is_decided()) return true;
      std::this_thread::sleep_for(std::min(find_pause(now - begin), begin + time - now));
      options.check_interrupt();
    }
    return is_decided();
  }

  // Returns true on the lowest rank that came.
  bool leads() {
    for (int rank = 0; rank < rank_; ++rank) {
      if (store_->has(key(rank))) return false;
    }
    return true;
  }
  std::vector<int> find_missing() {
    std::vector<int> missing;
    for (int rank = 0; rank < size_; ++rank) {
      if (!store_->has(key(rank))) missing.push_back(rank);
    }
    return missing;
  }

  std::string explain(const std::vector<int>& missing) const {
    const bool is_late = std::ranges::find(missing, rank_) != missing.end();
    return fmt::format(
        "debug.initialize: {} of {}{}{} s, and the others began{}; now each rank records its own "
        "values: nothing is reduced over ranks or compared. Call debug.initialize on every rank, "
        "with one configuration and at about the same time",
        describe_ranks(missing), size_, record::kMissingAfter, to_seconds(wait_),
        is_late ? " before this one came" : "");
  }

  // Returns an object whose destruction notifies ranks that come later that they cannot join a
  // session any more. It does not keep the store alive, because a later world may require its port.
  std::shared_ptr<void> begin_presence() const {
    const auto end = [store = store_->get_weak(), key = key("ended")](void*) {
      try {
        if (const auto alive = store()) alive->set(key, "1");
      } catch (const std::exception&) {
        // The host of the store is gone, so no further rank can come.
      }
    };
    static char anything;
    return {&anything, end};
  }

  std::shared_ptr<RankStore> store_;
  int rank_;
  int size_;
  milliseconds wait_;
  std::int64_t before_ = 0;  // the last rendezvous that this rank took part in
  std::int64_t number_ = 0;
};

// Returns the store of the world; null if the ranks cannot decide by it.
std::shared_ptr<RankStore> deciding_store(RankGroup& world) {
  std::shared_ptr<RankStore> store = world.store();
  return store && store->can_decide() ? store : nullptr;
}

void agree_in_a_collective(bool accepts, RankGroup& world) {
  const std::vector<std::int64_t> refusals = gather_notes(accepts ? 0 : 1, world);
  const auto refused = std::ranges::find(refusals, 1);
  if (accepts && refused != refusals.end()) {
    raise_refused(static_cast<int>(refused - refusals.begin()));
  }
}

Attendance join_in_store(RankGroup& world, std::shared_ptr<RankStore> store,
                         const RendezvousOptions& options) {
  StoreRendezvous rendezvous(world, std::move(store));
  const std::string decision = rendezvous.join(options);
  if (decision.starts_with(kAlone)) return rendezvous.parse_alone(decision);
  if (decision.starts_with(kRefused)) raise_refused(std::stoi(decision.substr(kRefused.size())));
  return {};
}

}  // namespace

Attendance join_rendezvous(const RankGroupPtr& world, const RendezvousOptions& options) {
  try {
    options.accept();
  } catch (...) {
    refuse_rendezvous(world);
    throw;
  }
  if (!has_several_ranks(world)) return {};
  if (auto store = deciding_store(*world)) return join_in_store(*world, std::move(store), options);
  agree_in_a_collective(true, *world);
  return {};
}

void refuse_rendezvous(const RankGroupPtr& world) noexcept {
  try {
    if (!has_several_ranks(world)) return;
    if (auto store = deciding_store(*world)) {
      StoreRendezvous(*world, std::move(store)).refuse();
    } else {
      agree_in_a_collective(false, *world);
    }
  } catch (const std::exception&) {
    // See refuse().
  }
}

void end_wait_of_others(const RankGroupPtr& world) noexcept {
  try {
    if (!has_several_ranks(world)) return;
    auto store = deciding_store(*world);
    if (!store) return;
    StoreRendezvous rendezvous(*world, std::move(store));
    if (rendezvous.is_waited_for()) rendezvous.refuse();
  } catch (const std::exception&) {
    // See refuse().
  }
}

}  // namespace telens
