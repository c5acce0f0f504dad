// The names of the layers that ran in a session: for what is likely a mistake in them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/config/config.h"

namespace telens::debug {

// Used under its owner's lock.
class LayerNameRegistry {
 public:
  // Held by a layer for as long as it lives.
  using Presence = std::shared_ptr<const void>;

  struct Entered {
    Presence presence;
    bool is_shared;  // another layer that is alive has the name
  };
  // A layer runs for the first time.
  Entered enter(std::string_view name);
  // A script hands over tensors of a layer that it calls so.
  void enter_script(std::string_view name) { present_.try_emplace(std::string(name)); }

  bool any() const { return !present_.empty(); }

  // A sentence for each section that selects none of them, though layers ran.
  std::vector<std::string> idle_sections(const config::Config& config) const;

 private:
  std::map<std::string, std::weak_ptr<const void>> present_;  // the last one of each name
};

}  // namespace telens::debug
