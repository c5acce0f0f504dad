#include "hooks/session/layer_name_registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace telens::debug {
namespace {

constexpr std::size_t kMostNames = 5;  // in an example

}  // namespace

LayerNameRegistry::Entered LayerNameRegistry::enter(std::string_view name) {
  std::weak_ptr<const void>& last = present_[std::string(name)];
  const bool is_shared = !last.expired();
  Presence presence = std::make_shared<char>();
  last = presence;
  return {std::move(presence), is_shared};
}

std::vector<std::string> LayerNameRegistry::idle_sections(const config::Config& config) const {
  std::vector<std::string> sentences;
  if (present_.empty()) return sentences;
  std::vector<std::string_view> names;
  for (const auto& [name, present] : present_) {
    if (names.size() < kMostNames) names.push_back(name);
  }
  const std::size_t others = present_.size() - names.size();
  for (const config::Section& section : config.sections()) {
    if (std::ranges::any_of(present_,
                            [&](const auto& each) { return section.layers.selects(each.first); })) {
      continue;
    }
    sentences.push_back(
        fmt::format("section '{}' selects none of the layers that ran: {}{}; `telens plan` shows "
                    "the layers of a section",
                    section.name, fmt::join(names, ", "),
                    others > 0 ? fmt::format(" and {} more", others) : ""));
  }
  return sentences;
}

}  // namespace telens::debug
