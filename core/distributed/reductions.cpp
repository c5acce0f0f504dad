#include "core/distributed/reductions.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "core/distributed/collective_watch.h"
#include "core/distributed/state_by_group.h"
#include "core/distributed/time_limit.h"
#include "core/distributed/warn_once.h"

namespace telens {
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

void AmaxReduction::add(at::Tensor amax, const ProcessGroupPtr& group) {
  auto found = std::find_if(groups_.begin(), groups_.end(),
                            [&](const Group& entry) { return entry.group == group; });
  if (found == groups_.end()) {
    groups_.push_back({group, {}});
    found = std::prev(groups_.end());
  }
  found->amaxes.push_back(std::move(amax));
}

void AmaxReduction::run() {
  for (const Group& entry : groups_) {
    at::Tensor packed = at::cat(entry.amaxes);
    const auto on_result =
        collective_watches::begin({CollectiveKind::maximum, packed, entry.group});
    // Backends disagree on the maximum of a NaN; all of them propagate infinity.
    packed.nan_to_num_(std::numeric_limits<double>::infinity(),
                       std::numeric_limits<double>::infinity());
    std::vector<at::Tensor> tensors{packed};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    entry.group->allreduce(tensors, options)->wait();
    if (on_result) on_result(packed);
    std::vector<std::int64_t> sizes;
    for (const at::Tensor& amax : entry.amaxes) sizes.push_back(amax.numel());
    at::_foreach_copy_(entry.amaxes, packed.split_with_sizes(sizes));
  }
}

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
