#include "hooks/rank_configurations.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/base/fnv1a.h"
#include "core/base/text.h"
#include "hooks/config/yaml_reader.h"
#include "hooks/gather_over_ranks.h"
#include "hooks/reductions.h"

namespace telens {
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

}  // namespace

std::string different_sections(const std::string& config_text, const debug::ReductionGroup& world) {
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

}  // namespace telens
