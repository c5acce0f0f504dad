#include "analysis/layer_map.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string_view>

namespace telens::analysis {
namespace {

using Names = std::set<std::string, std::less<>>;

// Returns the number of `longer` names by the prefix without which they are in `shorter`.
std::map<std::string, std::size_t> count_prefixes(std::span<const std::string> longer,
                                                  const Names& shorter) {
  std::map<std::string, std::size_t> counts;
  for (const std::string& name : longer) {
    for (auto dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      const std::string_view rest = std::string_view(name).substr(dot + 1);
      if (shorter.contains(rest)) ++counts[name.substr(0, dot + 1)];
    }
  }
  return counts;
}

}  // namespace

std::string map_layer(std::string name, const LayerMap& map) {
  for (const auto& [from, to, at_start] : map) {
    const auto at = name.find(from);
    if (at == std::string::npos || (at_start && at > 0)) continue;
    name.replace(at, from.size(), to);
    break;
  }
  return name;
}

LayerMap find_layer_map(std::span<const std::string> a, std::span<const std::string> b) {
  const Names names_a(a.begin(), a.end());
  const Names names_b(b.begin(), b.end());
  const std::size_t fewer = std::min(names_a.size(), names_b.size());
  const auto equal = static_cast<std::size_t>(std::ranges::count_if(
      names_a, [&](const std::string& name) { return names_b.contains(name); }));
  const auto is_half = [&](std::size_t count) { return count > 0 && 2 * count >= fewer; };
  if (is_half(equal)) return {};
  std::size_t most = equal;
  LayerMap best;
  for (const auto& [prefix, count] : count_prefixes(a, names_b)) {
    if (count > most && is_half(count)) {
      most = count;
      best = {{prefix, "", true}};
    }
  }
  for (const auto& [prefix, count] : count_prefixes(b, names_a)) {
    if (count > most && is_half(count)) {
      most = count;
      best = {{"", prefix, true}};
    }
  }
  return best;
}

}  // namespace telens::analysis
