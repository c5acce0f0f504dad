#include "features/weight_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <string_view>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <utility>

#include "features/rank_exchange.h"

namespace telens::features {
namespace {

// What one rank tells of one group.
struct Member {
  int rank = 0;  // in the group
  int size = 0;
  std::string_view id;
};

std::string line_of(const std::string& id, const c10d::ProcessGroup& group) {
  return fmt::format("{} {} {}\n", group.getRank(), group.getSize(), id);
}

// Takes a line off a rank's text.
Member take_member(std::string_view& text) {
  Member member;
  const char* at = std::from_chars(text.data(), text.data() + text.size(), member.rank).ptr + 1;
  at = std::from_chars(at, text.data() + text.size(), member.size).ptr + 1;
  text.remove_prefix(static_cast<std::size_t>(at - text.data()));
  member.id = text.substr(0, text.find('\n'));
  text.remove_prefix(member.id.size() + 1);
  return member;
}

// How many ranks tell that they are a group's first, second, ... by size and id. Groups of
// different ranks may have one name (those that a larger group was split into).
using Tellers = std::map<std::pair<int, std::string_view>, std::vector<int>>;

Tellers tellers_of(std::span<const std::string> told) {
  Tellers tellers;
  for (std::string_view text : told) {
    while (!text.empty()) {
      const Member member = take_member(text);
      auto& ranks = tellers[{member.size, member.id}];
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
  known_.try_emplace(id_of(*group), group);
}

std::int64_t WeightGroups::note() {
  const std::lock_guard lock(mutex_);
  told_.clear();
  for (const auto& [id, group] : known_) told_ += line_of(id, *group);
  return hash_of(told_);
}

Groups WeightGroups::complete_groups(std::span<const std::string> told) {
  Groups complete;
  const Tellers tellers = tellers_of(told);
  const std::lock_guard lock(mutex_);
  for (const auto& [id, group] : known_) {
    const auto found = tellers.find({group->getSize(), id});
    if (found == tellers.end()) continue;  // seen since the note
    const std::vector<int>& ranks = found->second;
    if (std::ranges::count(ranks, ranks.front()) == std::ssize(ranks)) complete.emplace(id, group);
  }
  return complete;
}

void WeightGroups::look_up(std::span<const std::string> told) {
  for (const auto& [size_and_id, ranks] : tellers_of(told)) {
    const std::string id(size_and_id.second);
    const std::lock_guard lock(mutex_);
    if (known_.contains(id)) continue;
    const debug::ReductionGroup own = registered_group(id);
    if (has_several_ranks(own)) known_.emplace(id, own);
  }
}

// Every rank sees the same notes, and so goes round equally often. What one looks up changes its
// note; there is an end to it, since nobody knows more groups than there are.
const Groups& WeightGroups::agree(std::vector<std::int64_t> notes, c10d::ProcessGroup& world) {
  if (notes_.empty()) notes_.assign(notes.size(), hash_of(""));  // nobody knows any
  while (notes != notes_) {
    notes_ = std::move(notes);
    const std::vector<std::string> told = gather_texts(told_, world);
    agreed_ = complete_groups(told);
    look_up(told);
    notes = gather_notes(note(), world);
  }
  return agreed_;
}

}  // namespace telens::features
