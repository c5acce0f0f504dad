#include "hooks/session/ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/fnv1a.h"
#include "core/base/text.h"
#include "hooks/config/yaml_reader.h"
#include "hooks/rendezvous.h"
#include "hooks/sections.h"
#include "record/rows/tables.h"

namespace telens::debug {

// ---- groups of reductions

void ReductionGroups::begin(RankGroupPtr world, bool ranks_agree) {
  ranks_agree_ = ranks_agree;
  world_ = ranks_agree ? std::move(world) : nullptr;
}

void ReductionGroups::choose(RankGroupPtr group, std::string_view layer_name) {
  const std::lock_guard lock(mutex_);
  if (layer_name.empty()) {
    chosen_ = std::move(group);
  } else if (group) {
    of_layers_.insert_or_assign(std::string(layer_name), std::move(group));
  } else {
    of_layers_.erase(std::string(layer_name));
  }
}

RankGroupPtr ReductionGroups::of_tensors() const {
  if (!ranks_agree_) return nullptr;
  const std::lock_guard lock(mutex_);
  return chosen_ ? chosen_ : world_;
}

RankGroupPtr ReductionGroups::chosen_for(std::string_view layer_name,
                                         const RankGroupPtr& in_call) const {
  if (!ranks_agree_) return nullptr;
  if (in_call) return in_call;
  const std::lock_guard lock(mutex_);
  const auto of_layer = of_layers_.find(layer_name);
  return of_layer == of_layers_.end() ? chosen_ : of_layer->second;
}

ReductionGroups::ForScript ReductionGroups::for_script(std::string_view layer_name,
                                                       const LogTensorStatsOptions& options,
                                                       bool is_last_rank) const {
  if (options.skip_reduction) return {};
  const RankGroupPtr chosen = chosen_for(layer_name, options.reduction_group);
  if (chosen) return {chosen, true};
  // If the world is null, the tensor is local to this rank.
  return {world_, is_last_rank || world_ == nullptr};
}

Reductions ReductionGroups::reductions() const {
  Reductions reductions{.world = world_, .tensors = of_tensors(), .weights = reduce_weights_};
  if (ranks_agree_) {
    const std::lock_guard lock(mutex_);
    reductions.tensors_of_layers = of_layers_;
  }
  return reductions;
}

// ---- the start of a session

namespace {

// Formats a line "<digest> <name>" for each section that is not disabled.
std::string parse_digests(std::string_view text) {
  config::ErrorList errors;  // it was loaded before
  const config::Value root = config::read_yaml(text, "config", errors);
  std::string lines;
  if (!root.is_map()) return lines;
  for (const config::MapEntry& section : root.as_map()) {
    const config::Value* enabled = section.value.find("enabled");
    if (enabled != nullptr && enabled->is_bool() && !enabled->as_bool()) continue;
    lines += fmt::format("{:016x} {}\n", fnv1a(config::to_json(section.value)), section.key);
  }
  return lines;
}

// Maps the names of the sections to a rank's digests.
std::map<std::string, std::string> by_section(std::string_view lines) {
  std::map<std::string, std::string> digests;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    const std::size_t space = line.find(' ');
    digests.emplace(line.substr(space + 1), line.substr(0, space));
    lines.remove_prefix(line.size() + 1);
  }
  return digests;
}

// Names the sections of the configuration that differ from the sections of rank 0, with their
// ranks; "" if all ranks of the world have the same. Every rank has to call this.
std::string different_sections(const std::string& config_text, const RankGroupPtr& world) {
  if (!has_several_ranks(world)) return "";
  const std::string own = parse_digests(config_text);
  const auto hashes = gather_notes(static_cast<std::int64_t>(fnv1a(own)), *world);
  if (std::ranges::all_of(hashes, [&](auto hash) { return hash == hashes.front(); })) return "";
  std::vector<std::map<std::string, std::string>> of_ranks;
  for (const std::string& lines : gather_texts(own, *world)) {
    of_ranks.push_back(by_section(lines));
  }
  std::map<std::string, std::vector<int>> different;  // sections that differ from rank 0
  for (std::size_t rank = 1; rank < of_ranks.size(); ++rank) {
    const int number = static_cast<int>(rank);
    const auto note = [&](const auto& sections, const auto& others) {
      for (const auto& [name, digest] : sections) {
        const auto found = others.find(name);
        if (found != others.end() && found->second == digest) continue;
        auto& ranks = different[name];
        if (ranks.empty() || ranks.back() != number) ranks.push_back(number);
      }
    };
    note(of_ranks[rank], of_ranks[0]);
    note(of_ranks[0], of_ranks[rank]);
  }
  std::vector<std::string> sections;
  for (const auto& [name, ranks] : different) {
    sections.push_back(fmt::format("section '{}' of {}", name, describe_ranks(ranks)));
  }
  return fmt::format("{}", fmt::join(sections, ", "));
}

// Returns a sentence for the user if the ranks of the world have different configurations, else "".
// Every rank of the world has to call this.
std::string difference_of_ranks(const InitializeOptions& options, const config::Config& config) {
  const std::string different = different_sections(config.text(), options.world);
  if (different.empty()) return "";
  return fmt::format(
      "{}, {} differing from rank 0; nothing is reduced over ranks, each records its own values; "
      "give all ranks the same configuration",
      record::kDifferentConfigurations, different);
}

void go_on_alone(const RankMeeting& meeting, const Attendance& attendance) {
  InitializeOptions& options = meeting.options;
  const std::vector<int>& missing = attendance.missing;
  // A rank that came late also reports it.
  const bool is_late = std::ranges::find(missing, options.rank) != missing.end();
  meeting.events.let_lead(is_late || options.rank == attendance.first);
  meeting.events.message_of_run(attendance.explanation, LogLevel::error);
  options.world = nullptr;
  if (!attendance.run_id.empty()) options.run_id = attendance.run_id;
}

// Ranks that watch different things would reduce, and wait for, different things.
void compare_ranks(const RankMeeting& meeting, bool all_have_come) {
  const std::string difference = difference_of_ranks(meeting.options, meeting.config);
  meeting.groups.begin(meeting.options.world, all_have_come && difference.empty());
  for (const std::string& text : meeting.config.warnings()) {
    // Another rank with another configuration may not have one.
    if (difference.empty()) {
      meeting.events.message_of_run(text, LogLevel::warning);
    } else {
      meeting.events.message(text, {}, LogLevel::warning);
    }
  }
  if (!difference.empty()) meeting.events.message_of_run(difference, LogLevel::warning);
}

}  // namespace

std::shared_ptr<void> meet_ranks(const RankMeeting& meeting, const std::function<void()>& accept) {
  EventLog& events = meeting.events;
  events.let_lead(meeting.options.rank == 0);
  Attendance attendance;
  try {
    attendance = join_rendezvous(
        meeting.options.world,
        {.accept = accept,
         .on_wait = [&](const auto& text) { events.message(text, {}, LogLevel::warning); },
         .name_run = [&] { return meeting.run_file.name_run(meeting.options); },
         .check_interrupt = meeting.options.check_interrupt});
  } catch (const std::exception&) {
    for (const std::string& text : meeting.config.warnings()) {
      events.message_of_run(text, LogLevel::warning);
    }
    throw;
  }
  if (!attendance.is_complete) go_on_alone(meeting, attendance);
  compare_ranks(meeting, attendance.is_complete);
  return attendance.presence;
}

// ---- comparison of ranks

namespace {

// Each rank writes to the store of the world that it has reached an exchange; a rank that times out
// reads there which ranks are missing.
class CheckIns {
 public:
  CheckIns(RankGroup& world, std::int64_t exchange)
      : store_(world.store()), rank_(world.rank()), size_(world.size()), now_(exchange) {}

  void note() {
    if (!store_) return;
    // a rank that reaches this exchange has left the previous one
    constexpr std::int64_t kRead = 2;
    store_->set(key(now_, rank_), "1");
    if (now_ >= kRead) store_->remove(key(now_ - kRead, rank_));
  }

  std::vector<int> missing() {
    std::vector<int> missing;
    for (int rank = 0; store_ && rank < size_; ++rank) {
      if (rank != rank_ && !store_->has(key(now_, rank))) missing.push_back(rank);
    }
    return missing;
  }

 private:
  static std::string key(std::int64_t exchange, int rank) {
    return fmt::format("telens/checks/{}/{}", exchange, rank);
  }

  std::shared_ptr<RankStore> store_;
  int rank_;
  int size_;
  std::int64_t now_;
};

std::string missing_in_words(const std::vector<int>& ranks) {
  if (ranks.empty()) return "a rank that has given up waiting";
  return describe_ranks(ranks);
}

}  // namespace

std::vector<RankChecks::Due> RankChecks::due_in(std::int64_t iteration) const {
  std::vector<Due> due;
  for (const auto& each : features_.all()) {
    auto* checker = dynamic_cast<RankChecker*>(each->feature.get());
    if (checker == nullptr || !each->section->runs()) continue;
    if (each->entry->due(iteration, each->feature->thinning_factor())) {
      due.push_back({each.get(), checker});
    }
  }
  return due;
}

std::optional<std::chrono::seconds> RankChecks::longest_wait(const RankGroupPtr& world) const {
  std::optional<std::chrono::seconds> limit;
  if (!has_several_ranks(world)) return limit;
  for (const auto& each : features_.all()) {
    const auto* checker = dynamic_cast<const RankChecker*>(each->feature.get());
    if (checker == nullptr) continue;
    limit = std::min(limit.value_or(checker->longest_wait()), checker->longest_wait());
  }
  return limit;
}

bool RankChecks::want_model(std::int64_t iteration) const {
  return is_on() && std::ranges::any_of(due_in(iteration), [](const Due& each) {
           return each.checker->wants_model();
         });
}

void RankChecks::look_at(std::int64_t iteration, std::span<const ModelTensor> tensors) {
  const std::vector<Due> due = due_in(iteration);
  for (const ModelTensor& tensor : tensors) {
    std::vector<FeatureInstance*> selecting;
    try {
      selecting = features_.all_for(tensor.module);
    } catch (const ConfigError&) {  // two sections select it; its layers report that
      continue;
    }
    for (const auto& [instance, checker] : due) {
      if (std::ranges::find(selecting, instance) == selecting.end()) continue;
      if (!checker->wants_model()) continue;
      isolation_.observe(*instance, tensor.layer, "look_at",
                         [&, seen = checker] { seen->look_at(tensor); });
    }
  }
}

void RankChecks::look_at(std::int64_t iteration, const ProgramCollective& collective) {
  if (!is_on()) return;
  for (const auto& [instance, checker] : due_in(iteration)) {
    isolation_.observe(*instance, collective.name, "look_at_collective",
                       [&, seen = checker] { seen->look_at_collective(collective); });
  }
}

std::vector<RankWords> RankChecks::gather(const RankWords& own, RankGroup& group) {
  const std::size_t room = capacity_ - 1;
  RankWords first(capacity_);
  first[0] = static_cast<std::int64_t>(own.size());
  std::copy_n(own.begin(), std::min(own.size(), room), first.begin() + 1);
  std::vector<RankWords> all;
  std::size_t longest = 0;
  for (const RankWords& each : gather_words(first, group)) {
    const auto size = static_cast<std::size_t>(each[0]);
    longest = std::max(longest, size);
    const auto end = each.begin() + 1 + static_cast<std::ptrdiff_t>(std::min(size, room));
    all.emplace_back(each.begin() + 1, end).resize(size);
  }
  if (longest <= room) return all;
  RankWords rest(longest - room);
  if (own.size() > room)
    std::copy(own.begin() + static_cast<std::ptrdiff_t>(room), own.end(), rest.begin());
  const std::vector<RankWords> rests = gather_words(rest, group);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].size() <= room) continue;
    std::copy_n(rests[rank].begin(), all[rank].size() - room,
                all[rank].begin() + static_cast<std::ptrdiff_t>(room));
  }
  capacity_ = std::bit_ceil(longest + 1);
  return all;
}

// Returns an empty list if a rank did not arrive.
std::vector<RankWords> RankChecks::exchange(const RankWords& own, std::int64_t iteration,
                                            RankGroup& group) {
  CheckIns check_ins(group, exchanges_++);
  std::string why;
  std::vector<int> missing;
  const double begin = seconds_now();
  try {
    check_ins.note();
    return gather(own, group);
  } catch (const std::exception& error) {
    rethrow_interruption();
    why = error.what();
    try {
      missing = check_ins.missing();
    } catch (const std::exception&) {  // the rank that hosts the store is gone
    }
  }
  alone_ = true;
  events_.announce(
      "ranks_not_compared",
      fmt::format("{} did not come to the comparison of ranks in iteration {} (waited for {:.1f} "
                  "s: {}){}",
                  missing_in_words(missing), iteration, seconds_now() - begin,
                  why.substr(0, why.find('\n')), record::kNotComparedAnymore),
      {});
  return {};
}

// A message contains, for each due feature, the number of words and the words.
void RankChecks::run(std::int64_t iteration) {
  if (!is_on()) return;
  const std::vector<Due> due = due_in(iteration);
  if (due.empty()) return;
  RankWords own;
  for (const auto& [instance, checker] : due) {
    RankWords words;
    isolation_.observe(*instance, {}, "get_words",
                       [&, asked = checker] { words = asked->get_words(iteration); });
    own.push_back(static_cast<std::int64_t>(words.size()));
    own.insert(own.end(), words.begin(), words.end());
  }
  const std::vector<RankWords> of_ranks = exchange(own, iteration, *group_);
  if (of_ranks.empty()) return;
  std::vector<std::ptrdiff_t> at(of_ranks.size(), 0);
  for (const auto& [instance, checker] : due) {
    std::vector<RankWords> parts;
    for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
      const auto begin = of_ranks[rank].begin() + at[rank] + 1;
      const std::int64_t size = of_ranks[rank][static_cast<std::size_t>(at[rank])];
      parts.emplace_back(begin, begin + size);
      at[rank] += size + 1;
    }
    isolation_.observe(*instance, {}, "compare",
                       [&, used = checker] { used->compare(iteration, parts); });
  }
}

}  // namespace telens::debug
