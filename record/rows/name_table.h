// The names of a session: rows hold ids in place of texts.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "record/rows/dictionary.h"
#include "record/rows/name_ids.h"

namespace telens::record {

// Any thread may ask. Ids are the session's: a sink translates them into those of its file.
class TELENS_EXPORT NameTable {
 public:
  // The id of a name, the same at each call.
  std::int32_t id(Dictionary dictionary, std::string_view name) {
    const std::lock_guard lock(mutex_);
    return names_[static_cast<std::size_t>(dictionary)].intern(name).first;
  }

  // The same, but kNoName for an empty one.
  std::int32_t id_or_none(Dictionary dictionary, std::string_view name) {
    return name.empty() ? kNoName : id(dictionary, name);
  }

  // "" for kNoName. The reference lasts as long as the table.
  const std::string& name(Dictionary dictionary, std::int32_t id) const {
    static const std::string none;
    if (id == kNoName) return none;
    const std::lock_guard lock(mutex_);
    return names_[static_cast<std::size_t>(dictionary)].name(id);
  }

 private:
  mutable std::mutex mutex_;  // over what follows
  std::array<NameIds, kDictionaries> names_;
};

}  // namespace telens::record
