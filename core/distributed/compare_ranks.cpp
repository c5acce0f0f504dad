#include "core/distributed/compare_ranks.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/distributed/state_by_group.h"

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
std::string to_text(c10d::Store& store, const std::string& key, int rank, const RankClaim& claim) {
  const auto wait = std::min(store.getTimeout(), kLongestWait);
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

void compare(const RankClaim& claim, c10d::ProcessGroup& group, std::uint64_t comparison) {
  constexpr std::uint64_t kRead = 2;  // a rank that comes here has read all texts of two before
  c10d::Store& store = *group.getStore();
  const int own = group.getRank();
  const std::string said = claim.details ? claim.text + claim.details() : claim.text;
  const std::string text = fmt::format("{}\n{}", claim.subject, said);
  store.set(make_key(comparison, own), get_bytes(text));
  if (comparison >= kRead) store.deleteKey(make_key(comparison - kRead, own));
  for (int rank = 0; rank < group.getSize(); ++rank) {
    if (rank == own) continue;
    const std::string other = to_text(store, make_key(comparison, rank), rank, claim);
    if (other == text) continue;
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
  const std::uint64_t comparison = [&] {
    const std::lock_guard lock(comparisons_mutex);
    return find_comparisons(group).count++;
  }();
  compare(claim, *group, comparison);
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
