// The ids of a dictionary's names: 0, 1, ... in the order of their first use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace telens::record {

class NameIds {
 public:
  // The id, and whether the name is new.
  std::pair<std::int32_t, bool> intern(std::string_view name) {
    const auto found = ids_.find(name);
    if (found != ids_.end()) return {found->second, false};
    const auto id = static_cast<std::int32_t>(list_.size());
    ids_.emplace(list_.emplace_back(name), id);
    return {id, true};
  }

  // The address of a name lasts as long as this object.
  const std::string& name(std::int32_t id) const { return list_[static_cast<std::size_t>(id)]; }
  std::size_t size() const { return list_.size(); }

 private:
  std::deque<std::string> list_;
  std::map<std::string_view, std::int32_t> ids_;  // by views of the strings in list_
};

}  // namespace telens::record
