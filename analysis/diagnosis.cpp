#include "analysis/diagnosis.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "analysis/rules.h"
#include "analysis/rules/precision_names.h"
#include "analysis/rules/scalar_reads.h"
#include "hooks/statistics/catalogue.h"

namespace telens::analysis {
namespace {

constexpr double kTrusted = 0.6;
// Iterations by which a problem of a scale or the setup may be detected later than its first
// consequence: a history that is not updated is only visible after the tensor has outgrown its
// scale.
constexpr std::int64_t kShownLater = 2;
// Iterations by which clipping and growth may seem to begin too early, by chance.
constexpr std::int64_t kByChance = 1;
// Number of iterations after the end of a cause in which consequences may still begin.
constexpr std::int64_t kAftermath = 20;

Stage get_stage(const Finding& finding) { return find_rule(finding.cause).stage; }

// Returns the earliest iteration in which the problem may have begun.
std::int64_t earliest(const Finding& finding) {
  const Stage stage = get_stage(finding);
  if (stage <= Stage::scale) return finding.first - kShownLater;
  if (stage == Stage::propagation && finding.gradual) return finding.first + 2 * kByChance;
  return finding.first + (stage == Stage::cast || finding.gradual ? kByChance : 0);
}

bool before(const Finding& a, const Finding& b) {
  const auto key = [](const Finding& f) {
    return std::tuple(f.confidence < kTrusted, earliest(f), get_stage(f),
                      get_order_in_step(f.place), f.place.rank, f.cause);
  };
  return key(a) < key(b);
}

bool is_same_elsewhere(const Finding& origin, const Finding& other) {
  return origin.cause == other.cause && std::abs(origin.first - other.first) <= kShownLater;
}

// A wrong setup affects its own layer; a wrong weight or history also shows in other layers.
bool follows_from_setup(const Finding& origin, const Finding& other) {
  if (get_stage(other) == Stage::setup) return false;
  if (other.place.layer == origin.place.layer) return true;
  const bool precision = find_rule(origin.cause).needs_ledger;
  return !precision && other.first <= origin.first + kShownLater;
}

// Another interpretation of the origin: the same tensor since the same iteration. The evidence
// shows the reader which one applies.
bool is_other_reading(const Finding& origin, const Finding& other) {
  return origin.place.layer == other.place.layer && origin.place.tensor == other.place.tensor &&
         origin.cause != other.cause && std::abs(origin.first - other.first) <= kByChance &&
         get_stage(other) <= Stage::values;
}

constexpr std::string_view kDeadGain = "dead_gain";

// Returns true if one is a dead gain and the other the collapsed tensor that results from it.
bool is_same_by_another_name(const Finding& origin, const Finding& other) {
  const auto is_collapse = [](const Finding& finding) {
    return finding.cause == kDeadGain || finding.cause == "collapsed_activation";
  };
  return is_collapse(origin) && is_collapse(other) && origin.place.layer == other.place.layer &&
         origin.place.tensor == other.place.tensor &&
         std::abs(origin.first - other.first) <= kByChance;
}

// Returns true if the rule of the other finding lists this cause as an origin. Both may be about
// the same tensor.
bool is_known_origin(const Finding& origin, const Finding& other) {
  const auto& causes = find_rule(other.cause).follows_causes;
  return std::ranges::find(causes, origin.cause) != causes.end();
}

// Returns true if the other finding is NaN or Inf and the origin is small values, untrained weights
// or wrong data, which do not produce them.
bool cannot_explain(const Finding& origin, const Finding& other) {
  constexpr std::array<std::string_view, 9> kHarmless{
      "vanishing_gradients", "underflow",    "lost_updates", "frozen_weight",   "detached_layer",
      "gradient_noise",      "wrong_labels", "label_leak",   "repeated_batches"};
  return other.cause == "nonfinite" &&
         std::ranges::find(kHarmless, origin.cause) != kHarmless.end();
}

bool may_follow(const Finding& origin, const Finding& other) {
  if (cannot_explain(origin, other)) return false;
  if (is_same_elsewhere(origin, other) || is_same_by_another_name(origin, other)) return true;
  if (is_known_origin(origin, other)) return earliest(other) >= earliest(origin);
  if (is_other_reading(origin, other)) return false;
  if (earliest(other) < earliest(origin) || other.first > origin.last + kAftermath) return false;
  if (get_stage(origin) == Stage::setup) return follows_from_setup(origin, other);
  // Precision that is lost in a cast does not change the setup or a scale, and hardly changes an
  // optimizer step.
  const Stage stage = get_stage(other);
  if (stage == Stage::setup || (stage <= Stage::update && stage < get_stage(origin))) return false;
  if (earliest(other) > origin.first || get_stage(other) > get_stage(origin)) return true;
  return get_stage(other) == get_stage(origin) &&
         get_order_in_step(other.place) >= get_order_in_step(origin.place);
}

// Moves a known origin before its consequence of the same iteration. For example, weights that
// diverge between ranks are a consequence of an unreduced gradient, but come first in a step.
void put_known_origins_first(std::vector<Finding>& findings) {
  for (auto later = findings.begin(); later != findings.end(); ++later) {
    const auto first = std::find_if(findings.begin(), later, [&](const Finding& known) {
      return known.confidence >= kTrusted && earliest(known) == earliest(*later) &&
             is_known_origin(*later, known);
    });
    if (later->confidence >= kTrusted) std::rotate(first, later, std::next(later));
  }
}

// Sorts the findings of every rule by confidence, iteration, stage, order in the step and rank, and
// moves likely consequences below their origin.
std::vector<Ranked> rank(std::vector<Finding> findings) {
  std::ranges::stable_sort(findings, before);
  put_known_origins_first(findings);
  std::vector<Ranked> ranked;
  for (Finding& finding : findings) {
    const auto origin = std::ranges::find_if(ranked, [&](const Ranked& known) {
      return known.finding.confidence >= kTrusted && may_follow(known.finding, finding);
    });
    if (origin == ranked.end()) {
      ranked.push_back({std::move(finding), {}});
    } else {
      // The gain can be fixed; the collapsed tensor is only its symptom.
      const bool is_the_cause =
          finding.cause == kDeadGain && is_same_by_another_name(origin->finding, finding);
      if (is_the_cause) std::swap(origin->finding, finding);
      origin->consequences.push_back(std::move(finding));
    }
  }
  return ranked;
}

std::vector<std::string> lacks(const Rule& rule, const Facts& facts) {
  std::vector<std::string> names;
  for (const std::string_view entry : rule.required) {
    const auto names_of_entry = alternatives_in(entry);
    const bool has_any = std::ranges::any_of(
        names_of_entry, [&](std::string_view statistic) { return facts.has(statistic); });
    if (!has_any) names.emplace_back(names_of_entry.front());
  }
  const auto was_passed = [&](std::string_view name) {
    return !scalars_named(facts, name).empty();
  };
  if (!rule.scalars.empty() && std::ranges::none_of(rule.scalars, was_passed)) {
    names.emplace_back(rule.scalars.front());
  }
  const bool has_other = std::ranges::any_of(rule.instead_of_ledger, [&](std::string_view name) {
    return facts.has(name) || was_passed(name);
  });
  if (rule.needs_ledger && facts.gemm_states().empty() && !has_other) {
    names.emplace_back("a ledger");
  }
  return names;
}

// The scalings that GEMMs ran in, by the ledger.
std::set<std::string_view> list_scalings(const Facts& facts) {
  std::set<std::string_view> scalings;
  for (const GemmState& state : facts.gemm_states()) {
    for (const auto& [entry, detail] : state.entries) {
      if (!entry.ends_with(" ran")) continue;
      const std::string_view scaling = scaling_in(detail);
      if (!scaling.empty()) scalings.insert(scaling);
    }
  }
  return scalings;
}

// Returns the precision under which the statistic is undefined, or "" if it is defined: a scale
// requires a cast, and a per-tensor scale requires a cast with per-tensor scaling.
std::string no_meaning_under(std::string_view statistic, const Facts& facts,
                             const std::set<std::string_view>& scalings) {
  using config::StatisticSource;
  const StatisticId row = find_statistic(statistic);
  if (row == nullptr || facts.gemm_states().empty()) return "";
  const bool is_of_scale = row->source() == StatisticSource::scale;
  if (!is_of_scale && row->source() != StatisticSource::cast) return "";
  if (scalings.empty()) return "high precision";
  if (!is_of_scale || scalings.contains(kTensorScaling)) return "";
  return fmt::format("{} scaling", fmt::join(scalings, " and "));
}

// Returns the missing statistics of a rule that no feature could have recorded.
InapplicableRule find_inapplicable(const Rule& rule, const Facts& facts,
                                   const std::set<std::string_view>& scalings) {
  InapplicableRule inapplicable{&rule, {}, {}};
  for (const std::string_view entry : rule.required) {
    std::string under;
    const auto has_none = [&](std::string_view statistic) {
      under = no_meaning_under(statistic, facts, scalings);
      return !under.empty() && !facts.has(statistic);
    };
    const auto names = alternatives_in(entry);
    if (!std::ranges::all_of(names, has_none)) continue;
    inapplicable.statistics.emplace_back(names.front());
    inapplicable.under = under;
  }
  return inapplicable;
}

bool asks_for_attention(const Rule& rule) {
  return std::ranges::any_of(rule.required, [](std::string_view entry) {
    const StatisticId row = find_statistic(alternatives_in(entry).front());
    return row != nullptr && row->source() == config::StatisticSource::scores;
  });
}

// Decides by recorded attention tensors, or by the name of a layer.
bool has_attention(const Facts& facts) {
  for (const std::string_view statistic : statistics_of_rules()) {
    for (const Series* series : facts.with(statistic)) {
      if (series->place.tensor && is_of_attention(*series->place.tensor)) return true;
    }
  }
  for (std::size_t layer = 0; layer < facts.layers(); ++layer) {
    std::string name = facts.layer_name(static_cast<std::int32_t>(layer));
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    for (const std::string_view part : {"attention", "attn", "qkv"}) {
      if (name.find(part) != std::string::npos) return true;
    }
  }
  return false;
}

// Returns true if the ranks could not be compared and fewer than two ranks have the input of the
// rule.
bool lacks_ranks(const Rule& rule, const Facts& facts) {
  if (!rule.compares_ranks || facts.why_not_compared().empty()) return false;
  std::set<int> ranks;
  for (const std::string_view entry : rule.required) {
    for (const std::string_view statistic : alternatives_in(entry)) {
      for (const Series* series : facts.with(statistic)) ranks.insert(series->place.rank);
    }
  }
  if (rule.needs_ledger) {
    for (const GemmState& state : facts.gemm_states()) ranks.insert(state.place.rank);
  }
  return ranks.size() < 2;
}

// A run with one rank needs no rank comparison, a run without attention no scores, and a program
// that does not show its optimizer no numbers of it.
bool could_have(const Rule& rule, const Facts& facts) {
  if (rule.compares_ranks) return facts.ranks() > 1;
  if (rule.needs_optimizer) return false;
  return !asks_for_attention(rule) || has_attention(facts);
}

// A finding that begins right after a resume may come from the checkpoint.
void tell_resume(Finding& finding, const Facts& facts) {
  constexpr std::int64_t kSteps = 2;
  for (const Resume& resume : facts.resumes()) {
    if (finding.first < resume.first || finding.first > resume.first + kSteps) continue;
    finding.summary += fmt::format("; the run was resumed at iteration {}", resume.first);
    return;
  }
}

// Returns the text in lower case with one blank between words and at both ends. Everything except
// letters separates words.
std::string list_words(std::string_view text) {
  std::string words = " ";
  for (const char each : text) {
    const auto c = static_cast<unsigned char>(each);
    if (std::isalpha(c) != 0) {
      words += static_cast<char>(std::tolower(c));
    } else if (words.back() != ' ') {
      words += ' ';
    }
  }
  if (words.back() != ' ') words += ' ';
  return words;
}

template <std::size_t N>
bool has_any(std::string_view words, const std::array<std::string_view, N>& parts) {
  return std::ranges::any_of(
      parts, [&](std::string_view part) { return words.find(part) != std::string_view::npos; });
}

// Returns true if the text of an exception is about wrong numbers: for example sampling from NaN,
// or a program that stops if its loss is not finite. Errors in the code do not count, although they
// may mention a loss ("KeyError: 'loss'"). Neither do assertions and buffer overflows.
bool speaks_of_numbers(std::string_view reason) {
  constexpr std::array<std::string_view, 9> kErrorsOfCode{
      " attributeerror ",      " importerror ", " indexerror ", " keyerror ",         " nameerror ",
      " modulenotfounderror ", " syntaxerror ", " typeerror ",  " unboundlocalerror "};
  constexpr std::array<std::string_view, 19> kNumbers{
      " nan ",        " nans ",        " isnan ",        " inf ",           " infs ",
      " isinf ",      " finite ",      " isfinite ",     " nonfinite ",     " infinity ",
      " infinities ", " is infinite ", " are infinite ", " infinite loss ", " diverge",
      " explod",      " loss scale ",  " overflow ",     " overflows "};
  constexpr std::array<std::string_view, 7> kJudgmentsOfLoss{
      " large ", " high ", " spike", " jump", " increas", " threshold ", " invalid "};
  constexpr std::array<std::string_view, 5> kNoNumbers{" stack overflow ", " buffer overflow ",
                                                       " heap overflow ", " queue overflow ",
                                                       " integer overflow "};
  const std::string words = list_words(reason);
  const std::string type = list_words(reason.substr(0, reason.find(':')));
  if (has_any(type, kErrorsOfCode) || has_any(words, kNoNumbers)) return false;
  if (has_any(words, kNumbers)) return true;
  return words.find(" loss ") != std::string::npos && has_any(words, kJudgmentsOfLoss);
}

bool is_of_values(const Finding& finding) {
  const Stage stage = find_rule(finding.cause).stage;
  return stage >= Stage::values && stage <= Stage::propagation;
}

// Only an exception can be a consequence of recorded values. Memory, signals and errors in the
// program's code have other causes.
bool explains(const Ranked& ranked, const Finding& end, const RunEnding& ending) {
  constexpr double kTrusted = 0.6;
  const Finding& finding = ranked.finding;
  if (ending.ending != Ending::exception || finding.first > end.first) return false;
  if (finding.confidence < kTrusted) return false;
  // A feature stopped the run, possibly because of any of the findings.
  if (ending.reason.find("RunStopped") != std::string::npos) return true;
  if (find_rule(finding.cause).compares_ranks && speaks_of_collectives(ending.reason)) return true;
  const auto leads_to = [&](const Finding& each) {
    if (each.first > end.first || !is_of_values(each)) return false;
    // A program that exits by itself, for example by sys.exit(1), gives no reason.
    const bool gives_none = ending.reason.starts_with("SystemExit");
    return speaks_of_numbers(ending.reason) || (gives_none && each.cause == "nonfinite");
  };
  return leads_to(finding) || std::ranges::any_of(ranked.consequences, leads_to);
}

// Adds the end of the run: as a consequence if a finding explains it, else as the last finding.
void add_ending(std::vector<Ranked>& ranked, Finding end, const RunEnding& ending) {
  const auto origin =
      std::ranges::find_if(ranked, [&](const Ranked& each) { return explains(each, end, ending); });
  if (origin == ranked.end()) {
    ranked.push_back({std::move(end), {}});
  } else {
    origin->consequences.push_back(std::move(end));
  }
}

}  // namespace

Diagnosis diagnose(const Facts& facts) {
  Diagnosis diagnosis{.first_iteration = facts.first_iteration(),
                      .last_iteration = facts.last_iteration()};
  diagnosis.why_not_compared = facts.why_not_compared();
  std::vector<Finding> findings;
  std::vector<Finding> endings;
  const auto scalings = list_scalings(facts);
  for (const Rule& rule : rules()) {
    if (rule.stage == Stage::ending) {
      std::ranges::move(rule.find(facts), std::back_inserter(endings));
      continue;
    }
    auto names = lacks(rule, facts);
    if (!names.empty()) {
      if (rule.judges_scalars && !facts.scalars().empty()) {
        std::ranges::move(rule.find(facts), std::back_inserter(findings));
      }
      InapplicableRule inapplicable = find_inapplicable(rule, facts, scalings);
      if (!inapplicable.statistics.empty()) {
        diagnosis.inapplicable.push_back(std::move(inapplicable));
      } else if (lacks_ranks(rule, facts)) {
        diagnosis.not_compared.push_back(&rule);
      } else if (could_have(rule, facts)) {
        diagnosis.skipped.push_back({&rule, std::move(names)});
      }
      continue;
    }
    std::vector<Finding> found = rule.find(facts);
    if (found.empty() && lacks_ranks(rule, facts)) {
      diagnosis.not_compared.push_back(&rule);
      continue;
    }
    ++diagnosis.checked;
    std::ranges::move(found, std::back_inserter(findings));
  }
  for (Finding& finding : findings) tell_resume(finding, facts);
  diagnosis.findings = rank(std::move(findings));
  for (Finding& end : endings) add_ending(diagnosis.findings, std::move(end), facts.ending());
  return diagnosis;
}

}  // namespace telens::analysis
