#include "core/distributed/compare_ranks.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/distributed/process_group.h"
#include "core/distributed/state_by_group.h"
#include "core/distributed/warn_once.h"

namespace telens {
namespace {

// A rank may be late if it saves a checkpoint or compiles. 10 minutes is torch's default timeout of
// NCCL collectives.
constexpr std::chrono::milliseconds kLongestWait = std::chrono::minutes(10);

// Limits the memory of texts with changing sizes in a long training.
constexpr std::size_t kMostTexts = 1024;

// The comparisons of a group so far.
struct Comparisons {
  std::uint64_t count = 0;
  // The most recent comparison whose texts this rank did not read completely, because it reported
  // an error or threw.
  std::optional<std::uint64_t> unread = {};
  std::set<std::string> equal = {};  // texts of compare_once_over_ranks
};

std::mutex comparisons_mutex;

// Requires comparisons_mutex.
Comparisons& find_comparisons(const ProcessGroupPtr& group) {
  static auto& all = *new StateByGroup<Comparisons>;
  return all.of(*group);
}

std::string make_key(std::uint64_t comparison, int rank) {
  return fmt::format("telens/{}/{}", comparison, rank);
}

std::vector<std::uint8_t> get_bytes(std::string_view text) { return {text.begin(), text.end()}; }

// Waits for the text of a rank.
std::string to_text(c10d::ProcessGroup& group, const std::string& key, int rank,
                    const RankClaim& claim) {
  c10d::Store& store = *group.getStore();
  const std::chrono::milliseconds limit = find_time_limit(group);
  const auto wait = limit.count() == 0 ? kLongestWait : std::min(limit, kLongestWait);
  try {
    store.wait({key}, wait);
  } catch (const c10::Error&) {
    raise<UsageError>("{}: this rank of {} {}, but rank {} has not reported within {} s; {}",
                      claim.subject, claim.group_name, claim.text, rank,
                      std::chrono::duration_cast<std::chrono::seconds>(wait).count(), claim.hint);
  }
  const std::vector<std::uint8_t> bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

// The number of a comparison in its group, and the number of an earlier one that all ranks have
// read.
struct Comparison {
  std::uint64_t number;
  std::optional<std::uint64_t> read;
};

Comparison next_comparison(const ProcessGroupPtr& group, bool reports_only) {
  constexpr std::uint64_t kRead =
      2;  // reading all texts of n implies that all ranks have read n - 1
  const std::lock_guard lock(comparisons_mutex);
  Comparisons& comparisons = find_comparisons(group);
  const std::uint64_t number = comparisons.count++;
  const bool knows = number >= kRead && comparisons.unread != number - 1;
  if (reports_only) comparisons.unread = number;
  return {number, knows ? std::optional(number - kRead) : std::nullopt};
}

void mark_unread(const ProcessGroupPtr& group, const Comparison& comparison) {
  const std::lock_guard lock(comparisons_mutex);
  find_comparisons(group).unread = comparison.number;
}

std::string make_text(const RankClaim& claim, const std::string& said) {
  return fmt::format("{}\n{}", claim.subject, said);
}

void publish(c10d::Store& store, const Comparison& comparison, int own, const std::string& text) {
  store.set(make_key(comparison.number, own), get_bytes(text));
  if (comparison.read) store.deleteKey(make_key(*comparison.read, own));
}

void compare(const RankClaim& claim, const ProcessGroupPtr& group, const Comparison& comparison) {
  c10d::Store& store = *group->getStore();
  const int own = group->getRank();
  const std::string said = claim.details ? claim.text + claim.details() : claim.text;
  const std::string text = make_text(claim, said);
  publish(store, comparison, own, text);
  for (int rank = 0; rank < group->getSize(); ++rank) {
    if (rank == own) continue;
    const std::string other = to_text(*group, make_key(comparison.number, rank), rank, claim);
    if (other == text) continue;
    mark_unread(group, comparison);
    const std::size_t end = other.find('\n');
    const std::string theirs = other.substr(end + 1);
    const std::string subject = other.substr(0, end);
    raise<UsageError>("{}: rank {} of {} {}, rank {} {}{}; {}", claim.subject, own,
                      claim.group_name, said, rank, theirs,
                      subject == claim.subject ? "" : " in " + subject, claim.hint);
  }
}

}  // namespace

void compare_over_ranks(const RankClaim& claim, const ProcessGroupPtr& group) {
  if (!group->getStore()) return;
  compare(claim, group, next_comparison(group, /*reports_only=*/false));
}

void report_error_to_ranks(const RankClaim& claim, const std::string& reason,
                           const ProcessGroupPtr& group) {
  if (!group->getStore()) return;
  publish(*group->getStore(), next_comparison(group, /*reports_only=*/true), group->getRank(),
          make_text(claim, fmt::format("refuses its arguments ({})", reason)));
}

void compare_once_over_ranks(const RankClaim& claim, const ProcessGroupPtr& group, bool force) {
  if (!force) {
    const std::lock_guard lock(comparisons_mutex);
    if (find_comparisons(group).equal.contains(claim.text)) return;
  }
  compare_over_ranks(claim, group);
  const std::lock_guard lock(comparisons_mutex);
  std::set<std::string>& equal = find_comparisons(group).equal;
  // All ranks compare the same texts in the same order, so all clear them at the same time.
  if (equal.size() >= kMostTexts) equal.clear();
  equal.insert(claim.text);
}

const std::string& get_name(const c10d::ProcessGroup& group) { return group.getGroupName(); }

// ---- announcements of reductions

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Limits memory and store if texts keep changing in a long training.
constexpr std::size_t kMostAnnouncements = 1024;

// Returns the number of this rank's announcement in the group, from 1, or 0 if the text was
// announced before.
std::size_t next_number(const std::string& text, c10d::ProcessGroup& group) {
  static std::mutex mutex;
  static auto& texts_by_group = *new StateByGroup<std::set<std::string>>;
  const std::lock_guard lock(mutex);
  std::set<std::string>& texts = texts_by_group.of(group);
  if (texts.size() >= kMostAnnouncements || !texts.insert(text).second) return 0;
  return texts.size();
}

// Returns true for torch's backend "fake", whose other ranks do not exist.
bool is_fake(const c10d::ProcessGroup& group) {
  try {
    return group.getDefaultBackend()->getBackendName() == "fake";
  } catch (const c10::Error&) {
    return false;  // a group of another kind
  }
}

class Announcement {
 public:
  Announcement(const ReductionNote& note, c10d::ProcessGroup& group, std::size_t number)
      : note_(note),
        store_(group.getStore()),
        rank_(group.getRank()),
        size_(group.getSize()),
        number_(number),
        wait_(std::min(kSilentWait, find_longest_wait(group))) {}

  void publish() {
    const std::string said = fmt::format("{}\n{}", number_, note_.text);
    store_->set(key(rank_), std::vector<std::uint8_t>(said.begin(), said.end()));
    store_->add(count_key(), 1);
  }

  // Returns false if some rank has not published the same text in time.
  bool wait() {
    const Clock::time_point begin = Clock::now();
    // The count exceeds the ranks if another group of the same name has announced over the same
    // store.
    while (store_->add(count_key(), 0) < size_) {
      const Clock::duration waited = Clock::now() - begin;
      if (waited >= wait_) return false;
      std::this_thread::sleep_for(find_pause(waited));
    }
    return true;
  }

  // Returns a message that names a rank with another reduction. Returns nullopt if ranks that
  // differ may still arrive, or if another rank reports: a thousand readers would overload the
  // store.
  std::optional<std::string> find_mismatched_rank() {
    if (store_->add(fmt::format("telens/reduces/looks/{}", note_.text), 1) > 1) return std::nullopt;
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_ || !store_->check({key(rank)})) continue;
      const std::vector<std::uint8_t> bytes = store_->get(key(rank));
      std::istringstream said(std::string(bytes.begin(), bytes.end()));
      std::size_t number = 0;
      std::string text;
      said >> number >> std::ws;
      std::getline(said, text);
      if (text != note_.text && number >= number_) return make_sentence(rank, text);
    }
    return std::nullopt;
  }

 private:
  static std::string key(int rank) { return fmt::format("telens/reduces/rank/{}", rank); }
  std::string count_key() const { return fmt::format("telens/reduces/count/{}", note_.text); }

  std::string make_sentence(int other, std::string_view text) const {
    return fmt::format(
        "{}: rank {} of {} ends a region under {}, rank {} under {}; unless that rank still comes "
        "to the same, the reduction waits until the group's time is up: {}",
        note_.subject, rank_, note_.group_name, note_.text, other, text, note_.hint);
  }

  const ReductionNote& note_;
  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  int size_;
  std::size_t number_;
  milliseconds wait_;
};

}  // namespace

void announce_reduction(const ReductionNote& note, const ProcessGroupPtr& group) {
  if (!group->getStore() || is_fake(*group)) return;
  const std::size_t number = next_number(note.text, *group);
  if (number == 0) return;
  try {
    Announcement announcement(note, *group, number);
    announcement.publish();
    if (!note.reduces || announcement.wait()) return;
    if (const auto sentence = announcement.find_mismatched_rank()) {
      warn_once(*sentence, ShownBy::this_rank);
    }
  } catch (const std::exception&) {
    // The store fails; so will the reduction, which reports it.
  }
}

}  // namespace telens
