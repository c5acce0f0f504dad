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

// The recipe and the operand precisions that a rank requests for a GEMM. The precision that ran may
// differ because of a feature or a shape.
using Requests = std::map<std::string, std::string>;

Requests get_requests(const GemmState& state) {
  Requests requests;
  for (const auto& [entry, detail] : state.entries) {
    if (entry == kRecipe || entry.ends_with(kRequested)) requests.emplace(entry, detail);
  }
  return requests;
}

// Returns the recipe, such as "fp8_delayed_scaling", if it differs between both requests. Otherwise
// returns the precisions: "activation E4M3 under tensor scaling, ...".
std::string describe_requests(const Requests& requests, const Requests& others) {
  const auto recipe = requests.find(kRecipe);
  const auto other = others.find(kRecipe);
  if (recipe != requests.end() && other != others.end() && recipe->second != other->second) {
    return recipe->second == "none" ? "no recipe" : recipe->second;
  }
  std::string words;
  for (const auto& [entry, detail] : requests) {
    if (!entry.ends_with(kRequested)) continue;
    words += fmt::format("{}{} {}", words.empty() ? "" : ", ",
                         entry.substr(0, entry.size() - kRequested.size()), detail);
  }
  return words;
}

// States of a layer's GEMM for each rank, in order of time.
using StatesOfRanks = std::map<int, std::vector<const GemmState*>>;
using StateByRank = std::map<int, const GemmState*>;

// Returns the state of each rank in an iteration. Skips ranks without a state.
StateByRank get_states_at(const StatesOfRanks& all, std::int64_t iteration) {
  StateByRank states;
  for (const auto& [rank, list] : all) {
    for (const GemmState* state : list) {
      if (state->iteration <= iteration) states[rank] = state;
    }
  }
  return states;
}

struct RecipeDifference {
  const GemmState* usual = nullptr;        // state of most ranks; of the lowest rank if tied
  std::vector<const GemmState*> odd = {};  // lowest rank of each other group, sorted
  std::vector<int> odd_ranks = {};         // all ranks of the first such group
  std::int64_t since = 0;
  bool may_follow = false;  // the other ranks may still switch in the last common iteration
};

std::optional<RecipeDifference> find_difference(const StateByRank& states) {
  // Older files do not contain the recipe.
  const bool all_have_recipe = std::ranges::all_of(
      states, [](const auto& each) { return each.second->entries.contains(kRecipe); });
  std::map<Requests, std::vector<int>> ranks;
  for (const auto& [rank, state] : states) {
    Requests requests = get_requests(*state);
    if (!all_have_recipe) requests.erase(kRecipe);
    ranks[std::move(requests)].push_back(rank);
  }
  if (ranks.size() < 2) return std::nullopt;
  const auto usual = std::ranges::max_element(ranks, {}, [](const auto& each) {
    return std::pair(each.second.size(), -each.second.front());
  });
  RecipeDifference difference{.usual = states.at(usual->second.front())};
  for (const auto& [requests, members] : ranks) {
    if (requests == usual->first) continue;
    difference.odd.push_back(states.at(members.front()));
    const bool is_first =
        difference.odd_ranks.empty() || members.front() < difference.odd_ranks.front();
    if (is_first) difference.odd_ranks = members;
  }
  std::ranges::sort(difference.odd, {}, [](const GemmState* state) { return state->place.rank; });
  difference.since = std::max(difference.usual->iteration, difference.odd.front()->iteration);
  return difference;
}

// Returns the difference in the last iteration that all ranks have reached; nullopt if slower ranks
// have the same state later.
std::optional<RecipeDifference> find_difference(const StatesOfRanks& states, const Facts& facts) {
  std::int64_t common = INT64_MAX;
  for (const auto& [rank, list] : states) common = std::min(common, *facts.last_of_rank(rank));
  auto difference = find_difference(get_states_at(states, common));
  if (!difference || !find_difference(get_states_at(states, INT64_MAX))) return std::nullopt;
  const bool began_together = difference->usual->iteration == difference->odd.front()->iteration;
  difference->may_follow = difference->since == common && !began_together;
  return difference;
}

Evidence make_evidence(const GemmState& state, const std::string& words) {
  return {.statistic = "ledger",
          .place = state.place,
          .iteration = state.iteration,
          .what = fmt::format("rank {} requests {}", state.place.rank, words)};
}

Finding unlike_recipes_finding(const RecipeDifference& difference, std::size_t other_layers,
                               const Facts& facts) {
  const GemmState& first = *difference.odd.front();
  const Requests odd = get_requests(first);
  const Requests usual = get_requests(*difference.usual);
  const std::string odd_words = describe_requests(odd, usual);
  const std::string usual_words = describe_requests(usual, odd);
  std::vector<Evidence> evidence{make_evidence(first, odd_words),
                                 make_evidence(*difference.usual, usual_words)};
  for (const GemmState* other : std::span(difference.odd).subspan(1)) {
    evidence.push_back(make_evidence(*other, describe_requests(get_requests(*other), usual)));
  }
  return {.cause = "unlike_recipes",
          .place = first.place,
          .first = difference.since,
          .last = std::max(facts.last_iteration(), difference.since),
          .confidence = difference.may_follow ? kPossible : kProven,
          .summary = fmt::format(
              "{} {} {}, but rank {} requests {}{}", describe_ranks(difference.odd_ranks),
              difference.odd_ranks.size() == 1 ? "requests" : "request", odd_words,
              difference.usual->place.rank, usual_words, and_others(other_layers, "layer")),
          .evidence = std::move(evidence)};
}

std::vector<Finding> find_unlike_recipes(const Facts& facts) {
  std::map<std::pair<std::int32_t, int>, StatesOfRanks> states;  // by layer and GEMM
  for (const GemmState& state : facts.gemm_states()) {
    if (state.place.layer == record::kNoName || !state.place.gemm) continue;
    if (!facts.last_of_rank(state.place.rank)) continue;
    const std::pair gemm{state.place.layer, static_cast<int>(*state.place.gemm)};
    states[gemm][state.place.rank].push_back(&state);
  }
  std::optional<RecipeDifference> first;
  std::set<std::int32_t> layers;
  for (const auto& [gemm, of_ranks] : states) {
    auto difference = find_difference(of_ranks, facts);
    if (!difference) continue;
    layers.insert(gemm.first);
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
