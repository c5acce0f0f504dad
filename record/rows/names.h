// Dictionaries: rows store ids, dictionaries store the names.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "record/rows/table.h"

namespace telens::record {

class NameIds {
 public:
  // Returns the id of `name` and whether it is new. Ids are 0, 1, ... in order of first use.
  std::pair<std::int32_t, bool> intern(std::string_view name) {
    const auto found = ids_.find(name);
    if (found != ids_.end()) return {found->second, false};
    const auto id = static_cast<std::int32_t>(list_.size());
    ids_.emplace(list_.emplace_back(name), id);
    return {id, true};
  }

  // The reference is valid as long as this object.
  const std::string& name(std::int32_t id) const { return list_[static_cast<std::size_t>(id)]; }
  std::size_t size() const { return list_.size(); }

 private:
  std::deque<std::string> list_;
  std::map<std::string_view, std::int32_t> ids_;  // views of the strings in list_
};

// The names of a session. Thread-safe. Ids belong to the session: a sink translates them into the
// ids of its file.

class TELENS_EXPORT NameTable {
 public:
  // Returns the id of `name`, which is the same at each call.
  std::int32_t id(Dictionary dictionary, std::string_view name) {
    const std::lock_guard lock(mutex_);
    return names_[static_cast<std::size_t>(dictionary)].intern(name).first;
  }

  // Like id(), but returns kNoName for an empty name.
  std::int32_t id_or_none(Dictionary dictionary, std::string_view name) {
    return name.empty() ? kNoName : id(dictionary, name);
  }

  // Returns "" for kNoName. The reference is valid as long as the table.
  const std::string& name(Dictionary dictionary, std::int32_t id) const {
    static const std::string none;
    if (id == kNoName) return none;
    const std::lock_guard lock(mutex_);
    return names_[static_cast<std::size_t>(dictionary)].name(id);
  }

 private:
  mutable std::mutex mutex_;  // guards names_
  std::array<NameIds, kDictionaries> names_;
};

}  // namespace telens::record
