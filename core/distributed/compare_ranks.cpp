#include "core/distributed/compare_ranks.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/distributed/state_by_group.h"
#include "core/distributed/time_limit.h"

namespace telens {
namespace {

// A rank that saves a checkpoint alone, or compiles, may be late. It is the time after which torch
// gives collectives of NCCL up.
constexpr std::chrono::milliseconds kLongestWait = std::chrono::minutes(10);

// Texts that hold changing sizes would fill memory in a long training.
constexpr std::size_t kMostTexts = 1024;

// The comparisons of one group so far.
struct Comparisons {
  std::uint64_t count = 0;
  // The newest one of which this rank has not read all texts: it told of a refusal, or raised.
  std::optional<std::uint64_t> unread = {};
  std::set<std::string> equal = {};  // texts of compare_once_over_ranks
};

std::mutex comparisons_mutex;

// Used under comparisons_mutex.
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
    raise<UsageError>(
        "{}: this rank of {} {}, and rank {} has not said within {} s what it does; {}",
        claim.subject, claim.group_name, claim.text, rank,
        std::chrono::duration_cast<std::chrono::seconds>(wait).count(), claim.mend);
  }
  const std::vector<std::uint8_t> bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

// A comparison's number in its group, and that of an earlier one whose text no rank needs now.
struct Turn {
  std::uint64_t number;
  std::optional<std::uint64_t> read;
};

Turn next_turn(const ProcessGroupPtr& group, bool tells_only) {
  constexpr std::uint64_t kRead = 2;  // a rank that has read all texts of one knows two before read
  const std::lock_guard lock(comparisons_mutex);
  Comparisons& comparisons = find_comparisons(group);
  const std::uint64_t number = comparisons.count++;
  const bool knows = number >= kRead && comparisons.unread != number - 1;
  if (tells_only) comparisons.unread = number;
  return {number, knows ? std::optional(number - kRead) : std::nullopt};
}

void leave_unread(const ProcessGroupPtr& group, const Turn& turn) {
  const std::lock_guard lock(comparisons_mutex);
  find_comparisons(group).unread = turn.number;
}

std::string make_text(const RankClaim& claim, const std::string& said) {
  return fmt::format("{}\n{}", claim.subject, said);
}

void say(c10d::Store& store, const Turn& turn, int own, const std::string& text) {
  store.set(make_key(turn.number, own), get_bytes(text));
  if (turn.read) store.deleteKey(make_key(*turn.read, own));
}

void compare(const RankClaim& claim, const ProcessGroupPtr& group, const Turn& turn) {
  c10d::Store& store = *group->getStore();
  const int own = group->getRank();
  const std::string said = claim.details ? claim.text + claim.details() : claim.text;
  const std::string text = make_text(claim, said);
  say(store, turn, own, text);
  for (int rank = 0; rank < group->getSize(); ++rank) {
    if (rank == own) continue;
    const std::string other = to_text(*group, make_key(turn.number, rank), rank, claim);
    if (other == text) continue;
    leave_unread(group, turn);
    const std::size_t end = other.find('\n');
    const std::string theirs = other.substr(end + 1);
    const std::string subject = other.substr(0, end);
    raise<UsageError>("{}: rank {} of {} {}, rank {} {}{}; {}", claim.subject, own,
                      claim.group_name, said, rank, theirs,
                      subject == claim.subject ? "" : " in " + subject, claim.mend);
  }
}

}  // namespace

void compare_over_ranks(const RankClaim& claim, const ProcessGroupPtr& group) {
  if (!group->getStore()) return;
  compare(claim, group, next_turn(group, /*tells_only=*/false));
}

void tell_refusal(const RankClaim& claim, const std::string& reason, const ProcessGroupPtr& group) {
  if (!group->getStore()) return;
  say(*group->getStore(), next_turn(group, /*tells_only=*/true), group->getRank(),
      make_text(claim, fmt::format("refuses its arguments ({})", reason)));
}

void compare_once_over_ranks(const RankClaim& claim, const ProcessGroupPtr& group, bool anew) {
  if (!anew) {
    const std::lock_guard lock(comparisons_mutex);
    if (find_comparisons(group).equal.contains(claim.text)) return;
  }
  compare_over_ranks(claim, group);
  const std::lock_guard lock(comparisons_mutex);
  std::set<std::string>& equal = find_comparisons(group).equal;
  // All ranks compare the same texts in the same order, so all forget them at the same one.
  if (equal.size() >= kMostTexts) equal.clear();
  equal.insert(claim.text);
}

const std::string& get_name(const c10d::ProcessGroup& group) { return group.getGroupName(); }

}  // namespace telens
