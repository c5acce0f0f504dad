#include "hooks/roll_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <sstream>
#include <string_view>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/base/error.h"
#include "core/base/rank_words.h"
#include "hooks/rank_agreement.h"
#include "hooks/reductions.h"

namespace telens {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A rank may load data first, or compile.
constexpr milliseconds kLongestWait = std::chrono::minutes(5);
// After it a person wants to know what the program waits for.
constexpr milliseconds kSilentWait = seconds(10);

constexpr std::string_view kAll = "all";
constexpr std::string_view kRefused = "refused";
constexpr std::string_view kAlone = "alone";

[[noreturn]] void raise_refused(int rank) {
  raise<UsageError>(
      "debug.initialize: expected all ranks to accept it, and rank {} refused; mend what its own "
      "error names",
      rank);
}

// One call of the roll in the store of a world. Its decision is made once, by the rank that is the
// first to know it, and holds for all.
class Roll {
 public:
  explicit Roll(c10d::ProcessGroup& world)
      : store_(*world.getStore()),
        rank_(world.getRank()),
        size_(world.getSize()),
        wait_(std::min(store_.getTimeout(), kLongestWait)) {
    const std::int64_t number = store_.add(fmt::format("telens/roll/calls/{}", rank_), 1);
    prefix_ = fmt::format("telens/roll/{}", number);
  }

  // Ends the call; a rank that has come later than the others waited has no say in it.
  void refuse() {
    decide([&] { return fmt::format("{} {}", kRefused, rank_); });
  }

  std::string come(const RollCallOptions& options) {
    put(key(rank_), "came");
    if (store_.add(key("count"), 1) == size_) decide([] { return std::string(kAll); });
    const milliseconds silent = std::min(kSilentWait, wait_ / 2);
    if (is_decided_within(silent)) return decision();
    options.on_wait(in_words_while_waiting(wait_ - silent));
    if (!is_decided_within(wait_ - silent)) {
      decide([&] {
        const std::string ranks = fmt::format("{}", fmt::join(missing(), " "));
        return fmt::format("{}\n{}\n{}", kAlone, options.name_run(), ranks);
      });
    }
    return decision();
  }

  // Takes the decision that each rank is alone, in lines: that word, a run id, the missing ranks.
  static RollCall parse(const std::string& alone) {
    RollCall call{.is_complete = false};
    std::istringstream lines(alone.substr(kAlone.size() + 1));
    std::getline(lines, call.run_id);
    for (int rank = 0; lines >> rank;) call.missing.push_back(rank);
    while (std::ranges::find(call.missing, call.first) != call.missing.end()) ++call.first;
    return call;
  }

  std::string in_words_while_waiting(milliseconds left) {
    return fmt::format(
        "debug.initialize waits for {} of {}, and every rank has to call it; in {} s the others "
        "begin alone, each with values of its own",
        ranks_in_words(missing()), size_, to_seconds(left));
  }

  std::string why(const RollCall& call) const {
    const bool is_late = std::ranges::find(call.missing, rank_) != call.missing.end();
    return fmt::format(
        "debug.initialize: {} of {} had not called it after {} s, and the others began{}; now each "
        "rank records alone: values are its own, nothing is reduced over ranks or compared. Call "
        "debug.initialize on every rank, with one configuration and at about the same time",
        ranks_in_words(call.missing), size_, to_seconds(wait_),
        is_late ? " before this one came" : "");
  }

 private:
  static std::int64_t to_seconds(milliseconds time) {
    return std::chrono::ceil<seconds>(time).count();
  }
  template <typename Name>
  std::string key(const Name& name) const {
    return fmt::format("{}/{}", prefix_, name);
  }
  void put(const std::string& key, std::string_view text) {
    store_.set(key, std::vector<std::uint8_t>(text.begin(), text.end()));
  }

  // make() is called on the rank that decides.
  template <typename Make>
  void decide(const Make& make) {
    if (store_.add(key("decider"), 1) == 1) put(key("decision"), make());
  }
  bool is_decided_within(milliseconds time) {
    if (time <= milliseconds::zero()) return store_.check({key("decision")});
    try {
      store_.wait({key("decision")}, time);
    } catch (const c10::Error&) {
      return false;
    }
    return true;
  }
  std::string decision() {
    const std::vector<std::uint8_t> bytes = store_.get(key("decision"));
    return {bytes.begin(), bytes.end()};
  }
  std::vector<int> missing() {
    std::vector<int> missing;
    for (int rank = 0; rank < size_; ++rank) {
      if (!store_.check({key(rank)})) missing.push_back(rank);
    }
    return missing;
  }

  c10d::Store& store_;
  int rank_;
  int size_;
  milliseconds wait_;
  std::string prefix_;
};

std::exception_ptr find_refusal(const std::function<void()>& accept) {
  try {
    accept();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

void agree_in_a_collective(bool accepts, c10d::ProcessGroup& world) {
  const std::vector<std::int64_t> refusals = gather_notes(accepts ? 0 : 1, world);
  const auto refused = std::ranges::find(refusals, 1);
  if (accepts && refused != refusals.end()) {
    raise_refused(static_cast<int>(refused - refusals.begin()));
  }
}

RollCall call_by_store(bool accepts, c10d::ProcessGroup& world, const RollCallOptions& options) {
  Roll roll(world);
  if (!accepts) {
    roll.refuse();
    return {};
  }
  const std::string decision = roll.come(options);
  if (decision == kAll) return {};
  if (decision.starts_with(kRefused)) raise_refused(std::stoi(decision.substr(kRefused.size())));
  RollCall call = roll.parse(decision);
  call.why = roll.why(call);
  return call;
}

}  // namespace

RollCall call_ranks(const debug::ReductionGroup& world, const RollCallOptions& options) {
  const std::exception_ptr refusal = find_refusal(options.accept);
  RollCall call;
  if (has_several_ranks(world)) {
    if (world->getStore()) {
      call = call_by_store(refusal == nullptr, *world, options);
    } else {
      agree_in_a_collective(refusal == nullptr, *world);
    }
  }
  if (refusal) std::rethrow_exception(refusal);
  return call;
}

}  // namespace telens
