#include "hooks/engine/weight_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <string_view>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "hooks/engine/rank_exchange.h"
#include "hooks/gather_over_ranks.h"
#include "hooks/group_identity.h"

namespace telens::features {
namespace {

// One rank's message about one group.
struct Member {
  int rank = 0;  // in the group
  int size = 0;
  std::string_view which;
};

// Tells groups of one name apart: those that a larger group was split into may share a name.
std::string describe_group(const std::string& id, c10d::ProcessGroup& group) {
  return fmt::format("{} {}", list_ranks(group), id);
}

std::string_view id_in(std::string_view which) { return which.substr(which.find(' ') + 1); }

std::string get_line(const std::string& id, c10d::ProcessGroup& group) {
  return fmt::format("{} {} {}\n", group.getRank(), group.getSize(), describe_group(id, group));
}

// Takes a line off a rank's text.
Member take_member(std::string_view& text) {
  Member member;
  const char* at = std::from_chars(text.data(), text.data() + text.size(), member.rank).ptr + 1;
  at = std::from_chars(at, text.data() + text.size(), member.size).ptr + 1;
  text.remove_prefix(static_cast<std::size_t>(at - text.data()));
  member.which = text.substr(0, text.find('\n'));
  text.remove_prefix(member.which.size() + 1);
  return member;
}

// How many ranks tell that they are a group's first, second, ... by size and which.
using Tellers = std::map<std::pair<int, std::string_view>, std::vector<int>>;

Tellers count_tellers(std::span<const std::string> told) {
  Tellers tellers;
  for (std::string_view text : told) {
    while (!text.empty()) {
      const Member member = take_member(text);
      auto& ranks = tellers[{member.size, member.which}];
      ranks.resize(static_cast<std::size_t>(member.size));
      ++ranks.at(static_cast<std::size_t>(member.rank));
    }
  }
  return tellers;
}

// Null: this rank has no such group.
debug::ReductionGroup registered_group(const std::string& id) {
  try {
    return share(c10d::resolve_process_group(id).get());
  } catch (const std::exception&) {
    return nullptr;
  }
}

}  // namespace

void WeightGroups::add(const debug::ReductionGroup& group) {
  const std::lock_guard lock(mutex_);
  known_.try_emplace(get_id(*group), group);
}

std::int64_t WeightGroups::note(bool shares) {
  const std::lock_guard lock(mutex_);
  shares_ = shares;
  told_.clear();
  if (shares) {
    for (const auto& [id, group] : known_) told_ += get_line(id, *group);
  }
  return compute_hash(told_);
}

// Exactly one rank tells that it is the first, and so on. Where more do, several groups pass for
// one, and it is not known whether the ranks that tell make up whole groups: weights stay unshared.
Groups WeightGroups::complete_groups(std::span<const std::string> told) {
  Groups complete;
  const Tellers tellers = count_tellers(told);
  const std::lock_guard lock(mutex_);
  for (const auto& [id, group] : known_) {
    const std::string own = describe_group(id, *group);
    const auto found = tellers.find({group->getSize(), own});
    if (found == tellers.end()) continue;  // seen since the note
    if (std::ranges::all_of(found->second, [](int tell) { return tell == 1; })) {
      complete.emplace(id, group);
    }
  }
  return complete;
}

void WeightGroups::look_up(std::span<const std::string> told) {
  for (const auto& [size_and_which, ranks] : count_tellers(told)) {
    const std::string id(id_in(size_and_which.second));
    const std::lock_guard lock(mutex_);
    if (known_.contains(id)) continue;
    const debug::ReductionGroup own = registered_group(id);
    if (has_several_ranks(own)) known_.emplace(id, own);
  }
}

// Every rank sees the same notes, and so goes round equally often. A rank that looks up a group
// changes its note. The loop ends, since no rank can learn more groups than there are.
const Groups& WeightGroups::agree(std::vector<std::int64_t> notes, c10d::ProcessGroup& world) {
  if (notes_.empty()) notes_.assign(notes.size(), compute_hash(""));  // no rank knows any
  while (notes != notes_) {
    notes_ = std::move(notes);
    const std::vector<std::string> told = gather_texts(told_, world);
    agreed_ = complete_groups(told);
    look_up(told);
    notes = gather_notes(note(shares_), world);
  }
  return agreed_;
}

}  // namespace telens::features
