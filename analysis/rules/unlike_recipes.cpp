#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/rules/rules.h"
#include "core/base/text.h"

namespace telens::analysis {
namespace {

constexpr std::string_view kRequested = " requested";
constexpr const char* kRecipe = "recipe";

// The wishes of a rank in a GEMM: its recipe, and how that casts the operands. A feature or a shape
// may make something else of them.
using Wishes = std::map<std::string, std::string>;

Wishes list_wishes(const GemmState& state) {
  Wishes wishes;
  for (const auto& [entry, detail] : state.entries) {
    if (entry == kRecipe || entry.ends_with(kRequested)) wishes.emplace(entry, detail);
  }
  return wishes;
}

// Returns "fp8_delayed_scaling", or "activation E4M3 under tensor scaling, ..." if the recipe was
// not recorded.
std::string get_words(const Wishes& wishes, const Wishes& others) {
  const auto recipe = wishes.find(kRecipe);
  const auto other = others.find(kRecipe);
  if (recipe != wishes.end() && other != others.end() && recipe->second != other->second) {
    return recipe->second == "none" ? "no recipe" : recipe->second;
  }
  std::string words;
  for (const auto& [entry, detail] : wishes) {
    if (!entry.ends_with(kRequested)) continue;
    words += fmt::format("{}{} {}", words.empty() ? "" : ", ",
                         entry.substr(0, entry.size() - kRequested.size()), detail);
  }
  return words;
}

// States of a layer's GEMM for each rank, in order of time.
using StatesOfRanks = std::map<int, std::vector<const GemmState*>>;
using OneOfEach = std::map<int, const GemmState*>;

// Those in force in an iteration; a rank without one is left out.
OneOfEach get_states_in(const StatesOfRanks& all, std::int64_t iteration) {
  OneOfEach states;
  for (const auto& [rank, list] : all) {
    for (const GemmState* state : list) {
      if (state->iteration <= iteration) states[rank] = state;
    }
  }
  return states;
}

struct Difference {
  const GemmState* usual = nullptr;        // most ranks have it; of as many the lowest decides
  std::vector<const GemmState*> odd = {};  // one per other group, the lowest rank's first
  std::vector<int> odd_ranks = {};         // ranks in the first such group
  std::int64_t since = 0;
  bool may_follow = false;  // one rank is still in the iteration in which another has switched
};

std::optional<Difference> find_difference(const OneOfEach& states) {
  // Older files do not name the recipe.
  const bool all_name_it = std::ranges::all_of(
      states, [](const auto& each) { return each.second->entries.contains(kRecipe); });
  std::map<Wishes, std::vector<int>> ranks;
  for (const auto& [rank, state] : states) {
    Wishes wishes = list_wishes(*state);
    if (!all_name_it) wishes.erase(kRecipe);
    ranks[std::move(wishes)].push_back(rank);
  }
  if (ranks.size() < 2) return std::nullopt;
  const auto usual = std::ranges::max_element(ranks, {}, [](const auto& each) {
    return std::pair(each.second.size(), -each.second.front());
  });
  Difference difference{.usual = states.at(usual->second.front())};
  for (const auto& [wishes, of] : ranks) {
    if (wishes == usual->first) continue;
    difference.odd.push_back(states.at(of.front()));
    const bool is_first = difference.odd_ranks.empty() || of.front() < difference.odd_ranks.front();
    if (is_first) difference.odd_ranks = of;
  }
  std::ranges::sort(difference.odd, {}, [](const GemmState* state) { return state->place.rank; });
  difference.since = std::max(difference.usual->iteration, difference.odd.front()->iteration);
  return difference;
}

// In the last iteration that all of the ranks have come to, unless the slower ones follow later.
std::optional<Difference> find_difference(const StatesOfRanks& states, const Facts& facts) {
  std::int64_t common = INT64_MAX;
  for (const auto& [rank, list] : states) common = std::min(common, *facts.last_of_rank(rank));
  auto difference = find_difference(get_states_in(states, common));
  if (!difference || !find_difference(get_states_in(states, INT64_MAX))) return std::nullopt;
  const bool began_together = difference->usual->iteration == difference->odd.front()->iteration;
  difference->may_follow = difference->since == common && !began_together;
  return difference;
}

Evidence make_evidence(const GemmState& state, const std::string& words) {
  return {.statistic = "ledger",
          .place = state.place,
          .iteration = state.iteration,
          .what = fmt::format("rank {} asks for {}", state.place.rank, words)};
}

Finding unlike_recipes_finding(const Difference& difference, std::size_t other_layers,
                               const Facts& facts) {
  const GemmState& first = *difference.odd.front();
  const Wishes odd = list_wishes(first);
  const Wishes usual = list_wishes(*difference.usual);
  const std::string odd_words = get_words(odd, usual);
  const std::string usual_words = get_words(usual, odd);
  const std::string others =
      other_layers == 0
          ? ""
          : fmt::format("; so in {} other layer{}", other_layers, other_layers == 1 ? "" : "s");
  std::vector<Evidence> evidence{make_evidence(first, odd_words),
                                 make_evidence(*difference.usual, usual_words)};
  for (const GemmState* other : std::span(difference.odd).subspan(1)) {
    evidence.push_back(make_evidence(*other, get_words(list_wishes(*other), usual)));
  }
  return {.cause = "unlike_recipes",
          .place = first.place,
          .first = difference.since,
          .last = std::max(facts.last_iteration(), difference.since),
          .confidence = difference.may_follow ? kPossible : kProven,
          .summary = fmt::format("{} {} for {}, and rank {} for {}{}",
                                 describe_ranks(difference.odd_ranks),
                                 difference.odd_ranks.size() == 1 ? "asks" : "ask", odd_words,
                                 difference.usual->place.rank, usual_words, others),
          .evidence = std::move(evidence)};
}

std::vector<Finding> find_unlike_recipes(const Facts& facts) {
  std::map<std::pair<std::int32_t, int>, StatesOfRanks> states;  // by layer and GEMM
  for (const GemmState& state : facts.gemm_states()) {
    if (state.place.layer == record::kNoName || !state.place.gemm) continue;
    if (!facts.last_of_rank(state.place.rank)) continue;
    const std::pair where{state.place.layer, static_cast<int>(*state.place.gemm)};
    states[where][state.place.rank].push_back(&state);
  }
  std::optional<Difference> first;
  std::set<std::int32_t> layers;
  for (const auto& [where, of_ranks] : states) {
    auto difference = find_difference(of_ranks, facts);
    if (!difference) continue;
    layers.insert(where.first);
    if (!first || difference->since < first->since) first = std::move(difference);
  }
  if (!first) return {};
  return {unlike_recipes_finding(*first, layers.size() - 1, facts)};
}

}  // namespace

Rule unlike_recipes() {
  return {.cause = "unlike_recipes",
          .title = "different recipes for one layer across ranks",
          .doc =
              "The ledgers of the ranks name different recipes, or different requested precisions, "
              "for the same GEMM of the same layer. Ranks whose recipes reduce different values "
              "over the group block each other until the timeout. Differences that a feature or a "
              "shape causes are not reported.",
          .stage = Stage::setup,
          .needs_ledger = true,
          .compares_ranks = true,
          .recorded_by = "PrecisionLedger",
          .alternatives =
              "Pipeline stages whose layers have the same names but different recipes: give each "
              "layer a unique name.",
          .next_step =
              "telens ledger RUN --layer '{layer}' --by rank; pass the same recipe to fp8_autocast "
              "on all ranks: compare where each rank reads it from (command line, environment "
              "variable, checkpoint)",
          .find = find_unlike_recipes};
}

}  // namespace telens::analysis
