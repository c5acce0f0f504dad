#include "core/distributed/announced_reduction.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "core/distributed/state_by_group.h"
#include "core/distributed/time_limit.h"
#include "core/distributed/warn_once.h"

namespace telens {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

// Ranks are seldom further apart than this, and a person wants to know by then.
constexpr milliseconds kSilentWait = seconds(10);
// Between two looks at the store: a quarter of the time waited so far, within these.
constexpr milliseconds kShortPause{5};
constexpr milliseconds kLongPause{500};

// Texts that keep changing would fill memory and store in a long training.
constexpr std::size_t kMostAnnouncements = 1024;

// The number of this rank's announcement in the group, from 1 on; 0: it is none, since the text has
// been announced before.
std::size_t next_number(const std::string& text, c10d::ProcessGroup& group) {
  static std::mutex mutex;
  static auto& texts_by_group = *new StateByGroup<std::set<std::string>>;
  const std::lock_guard lock(mutex);
  std::set<std::string>& texts = texts_by_group.of(group);
  if (texts.size() >= kMostAnnouncements || !texts.insert(text).second) return 0;
  return texts.size();
}

// True for torch's backend "fake", whose other ranks do not exist.
bool is_pretended(const c10d::ProcessGroup& group) {
  try {
    return group.getDefaultBackend()->getBackendName() == "fake";
  } catch (const c10::Error&) {
    return false;  // a group of another kind
  }
}

// Another rank, whose last announcement differs.
struct Unlike {
  int rank;
  std::string text;
};

class Announcement {
 public:
  Announcement(const ReductionNote& note, c10d::ProcessGroup& group, std::size_t number)
      : note_(note),
        store_(group.getStore()),
        rank_(group.getRank()),
        size_(group.getSize()),
        number_(number),
        wait_(find_longest_wait(group)) {}

  void say() {
    const std::string said = fmt::format("{}\n{}", number_, note_.text);
    store_->set(key(rank_), std::vector<std::uint8_t>(said.begin(), said.end()));
    all_have_said_it_ = store_->add(count_key(), 1) == size_;
  }

  // Where ranks differ to the end, one of them.
  std::optional<Unlike> wait() {
    const Clock::time_point begin = Clock::now();
    std::optional<Unlike> unlike;
    milliseconds next_look = std::min(kSilentWait, wait_ / 2);
    while (!all_have_said_it_ && Clock::now() - begin < wait_) {
      const Clock::duration waited = Clock::now() - begin;
      if (waited >= next_look) {
        next_look *= 2;  // a thousand ranks must not keep the store's thread busy
        if (!look(unlike)) return std::nullopt;
        if (unlike && is_first_to_say_it_) warn_once(make_sentence(*unlike), ShownBy::this_rank);
      }
      std::this_thread::sleep_for(std::clamp<Clock::duration>(waited / 4, kShortPause, kLongPause));
      all_have_said_it_ = store_->add(count_key(), 0) == size_;
    }
    if (all_have_said_it_ || !look(unlike)) return std::nullopt;
    return unlike;
  }

  std::string make_sentence(const Unlike& unlike) const {
    return fmt::format(
        "{}: rank {} of {} ends a region under {}, rank {} under {}, and their reductions do not "
        "fit; {}",
        note_.subject, rank_, note_.group_name, note_.text, unlike.rank, unlike.text, note_.mend);
  }

 private:
  static std::string key(int rank) { return fmt::format("telens/reduces/rank/{}", rank); }
  std::string count_key() const { return fmt::format("telens/reduces/count/{}", note_.text); }

  // Reads what each rank announced last. False: all of them have said what this one says. A rank
  // that has announced less may still come to it.
  bool look(std::optional<Unlike>& unlike) {
    unlike.reset();
    bool some_are_late = false;
    is_first_to_say_it_ = true;
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      if (!store_->check({key(rank)})) {
        some_are_late = true;
        continue;
      }
      const std::vector<std::uint8_t> bytes = store_->get(key(rank));
      std::istringstream said(std::string(bytes.begin(), bytes.end()));
      std::size_t number = 0;
      std::string text;
      said >> number >> std::ws;
      std::getline(said, text);
      if (text == note_.text) {
        if (rank < rank_) is_first_to_say_it_ = false;
      } else if (number < number_) {
        some_are_late = true;
      } else if (!unlike) {
        unlike = Unlike{rank, text};
      }
    }
    return some_are_late || unlike;
  }

  const ReductionNote& note_;
  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  int size_;
  std::size_t number_;
  milliseconds wait_;
  bool all_have_said_it_ = false;
  bool is_first_to_say_it_ = true;
};

}  // namespace

void announce_reduction(const ReductionNote& note, const ProcessGroupPtr& group) {
  if (!group->getStore() || is_pretended(*group)) return;
  const std::size_t number = next_number(note.text, *group);
  if (number == 0) return;
  Announcement announcement(note, *group, number);
  std::optional<Unlike> unlike;
  try {
    announcement.say();
    if (note.reduces) unlike = announcement.wait();
  } catch (const std::exception&) {
    return;
  }
  if (unlike) throw UsageError(announcement.make_sentence(*unlike));
}

}  // namespace telens
