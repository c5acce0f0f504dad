// The names of the layers that ran in a session, used to detect likely mistakes in them.
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
  // Held by a layer as long as it lives.
  using Presence = std::shared_ptr<const void>;

  struct Entered {
    Presence presence;
    bool is_shared;  // another live layer has the name
  };
  // Called when a layer runs for the first time.
  Entered enter(std::string_view name);
  // Called when a script passes tensors of a layer with this name.
  void enter_script(std::string_view name) { present_.try_emplace(std::string(name)); }

  bool any() const { return !present_.empty(); }

  // Returns a sentence for each section that selects none of them, although layers ran.
  std::vector<std::string> idle_sections(const config::Config& config) const;

 private:
  std::map<std::string, std::weak_ptr<const void>> present_;  // newest layer per name
};

}  // namespace telens::debug
