#include "features/trigger/condition.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/config/feature_description.h"
#include "hooks/config/suggestions.h"

namespace telens {
namespace {

using Relation = Condition::Relation;

bool is_comparison(Relation relation) { return relation < Relation::jumps; }

bool holds(Relation relation, double value, double bound) {
  switch (relation) {
    case Relation::above:
      return value > bound;
    case Relation::at_least:
      return value >= bound;
    case Relation::below:
      return value < bound;
    default:
      return value <= bound;
  }
}

std::size_t values_needed(const Condition& condition) {
  if (is_comparison(condition.relation)) return 0;
  return condition.relation == Relation::spikes ? condition.window : 1;
}

}  // namespace

std::optional<std::string> ConditionHistory::add(double value) {
  const std::optional<std::string> judged = judge(value);
  const std::size_t needed = values_needed(condition_);
  if (std::isfinite(value) && needed > 0) {
    before_.push_back(value);
    if (before_.size() > needed) before_.pop_front();
  }
  return judged;
}

std::optional<std::string> ConditionHistory::judge(double value) const {
  if (std::isnan(value)) return "NaN";
  if (condition_.relation == Relation::spikes) return judge_spike(value);
  if (!is_comparison(condition_.relation)) return judge_step(value);
  if (!holds(condition_.relation, value, condition_.bound)) return std::nullopt;
  return fmt::format("{:.6g}", value);
}

std::optional<std::string> ConditionHistory::judge_step(double value) const {
  if (before_.empty() || before_.back() <= 0 || value < 0) return std::nullopt;
  const double last = before_.back();
  const bool rises = condition_.relation == Relation::jumps;
  if (rises ? value <= condition_.bound * last : value * condition_.bound >= last) {
    return std::nullopt;
  }
  return fmt::format("{:.6g} after {:.6g}", value, last);
}

std::optional<std::string> ConditionHistory::judge_spike(double value) const {
  if (before_.size() < std::min(condition_.window, kFewestBeforeSpike)) return std::nullopt;
  const double usual = average();
  if (usual <= 0 || value <= condition_.bound * usual) return std::nullopt;
  return fmt::format("{:.6g}, {:.3g} times the {} of {} values, {:.6g}", value, value / usual,
                     condition_.average == Condition::Average::median ? "median" : "mean",
                     before_.size(), usual);
}

double ConditionHistory::average() const {
  std::vector<double> values(before_.begin(), before_.end());
  if (condition_.average == Condition::Average::mean) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace telens

namespace telens::features {
namespace {

using config::ErrorList;
using config::Value;
using Average = Condition::Average;
using Relation = Condition::Relation;
using Words = std::span<const std::string>;

constexpr std::string_view kGrammar =
    "expected, for example, 'overflows% of gradient > 0.1', 'scale_inv jumps > 8x' or "
    "'loss spikes > 2x median of 50'";

struct RelationWord {
  std::string_view word;
  Relation relation;
};
constexpr std::array<RelationWord, 7> kRelations{{{">", Relation::above},
                                                  {">=", Relation::at_least},
                                                  {"<", Relation::below},
                                                  {"<=", Relation::at_most},
                                                  {"jumps", Relation::jumps},
                                                  {"drops", Relation::drops},
                                                  {"spikes", Relation::spikes}}};

const RelationWord* find_relation(std::string_view word) {
  const auto found = std::ranges::find(kRelations, word, &RelationWord::word);
  return found == kRelations.end() ? nullptr : &*found;
}

// Blanks separate words. A comparison is also a word, even without blanks.
std::vector<std::string> get_words(std::string_view text) {
  const auto kind = [](char c) {
    return c == ' ' || c == '\t'                                       ? 0
           : std::string_view("<>=").find(c) != std::string_view::npos ? 1
                                                                       : 2;
  };
  std::vector<std::string> words;
  int last = 0;
  for (const char c : text) {
    const int now = kind(c);
    if (now != 0 && now != last) words.emplace_back();
    if (now != 0) words.back() += c;
    last = now;
  }
  return words;
}

template <typename Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// scale_inv means scale_inv_max: for a single scale, the smallest and the largest are the same.
std::optional<StatisticName> statistic_in(const std::string& word,
                                          const config::StatisticDescriptions* plugin) {
  if (word.ends_with("scale_inv")) {
    if (auto builtin = parse_statistic_name(word + "_max")) return builtin;
  }
  return parse_statistic_name(word, plugin);
}

std::vector<std::string> known_subjects(const config::StatisticDescriptions* plugin) {
  std::vector<std::string> names = known_statistic_names(plugin);
  names.emplace_back("loss");
  names.emplace_back("recorded");
  return names;
}

bool is_of_cast(const StatisticName& name) {
  return name.statistic->source() == StatisticSource::cast;
}

// Reads one condition. Text that it cannot read is reported as an error at the text's location.
class Parser {
 public:
  Parser(const Value& written, ErrorList& errors, const config::StatisticDescriptions* plugin)
      : written_(written), errors_(errors), plugin_(plugin) {
    condition_.text = written.as_string();
  }

  std::optional<Condition> parse() {
    const std::vector<std::string> words = get_words(condition_.text);
    const auto relation = std::ranges::find_if(
        words, [](const std::string& word) { return find_relation(word) != nullptr; });
    const auto subject_words = static_cast<std::size_t>(relation - words.begin());
    if (relation == words.end()) {
      report("has no comparison ({})", comparisons());
    } else if (parse_subject(Words(words).first(subject_words))) {
      condition_.relation = find_relation(*relation)->relation;
      const Words rest = Words(words).subspan(subject_words + 1);
      if (condition_.relation < Relation::jumps ? parse_bound(rest) : parse_factor(rest)) {
        warn_of_impossible();
        return condition_;
      }
    }
    return std::nullopt;
  }

 private:
  template <typename... Args>
  bool report(fmt::format_string<Args...> format, Args&&... args) {
    errors_.add(written_.location(), "the condition '{}' {}; {}", condition_.text,
                ErrorList::message<Args...>(format, args...), kGrammar);
    return false;
  }

  static std::string comparisons() {
    std::vector<std::string> words;
    for (const RelationWord& each : kRelations) words.emplace_back(each.word);
    return config::quoted_list(words);
  }

  bool parse_subject(Words words) {
    if (words.empty()) return report("does not name a statistic");
    if (words.front() == "recorded") {
      condition_.name = fmt::format("{}", fmt::join(words.subspan(1), " "));
      return !condition_.name.empty() || report("needs a name after 'recorded'");
    }
    if (words.front() == "loss") {
      condition_.name = "loss";
      return words.size() == 1 || report("has '{}' after 'loss'", words[1]);
    }
    condition_.statistic = statistic_in(words.front(), plugin_);
    if (!condition_.statistic) {
      return report(
          "is about '{}', which is not a statistic{}; a number that the program records is "
          "'recorded {}'",
          words.front(), config::suggestion(words.front(), known_subjects(plugin_)), words.front());
    }
    return parse_tensor(words.subspan(1));
  }

  bool parse_tensor(Words words) {
    if (words.empty()) return true;
    const std::vector<std::string> known = names_of_tensors();
    if (words.size() != 2 || words[0] != "of") {
      return report("has '{}' in place of 'of' and a tensor", fmt::join(words, " "));
    }
    condition_.tensor = tensor_from_name(words[1]);
    if (std::ranges::find(known, words[1]) != known.end()) return true;
    return report("names the tensor '{}'{}; the statistic has {}", words[1],
                  config::suggestion(words[1], known), config::quoted_list(known));
  }

  std::vector<std::string> names_of_tensors() const {
    switch (condition_.statistic->statistic->source()) {
      case StatisticSource::scores:
        return {std::string(get_name(TensorName::scores))};
      case StatisticSource::cast:
        return config::with_attention(config::gemm_input_names(), /*scores=*/false);
      default:
        return config::with_attention(config::all_tensor_names(), /*scores=*/true);
    }
  }

  bool parse_bound(Words words) {
    const auto bound = words.size() == 1 ? number_in<double>(words[0]) : std::nullopt;
    if (!bound || std::isnan(*bound)) {
      return report("compares with '{}', which is not a number", fmt::join(words, " "));
    }
    condition_.bound = *bound;
    return true;
  }

  // A percentage is between 0 and 100.
  void warn_of_impossible() {
    if (!condition_.statistic) return;
    const std::string name = format_statistic_name(*condition_.statistic);
    const double bound = condition_.bound;
    const bool impossible = (condition_.relation == Relation::above && bound >= 100) ||
                            (condition_.relation == Relation::at_least && bound > 100) ||
                            (condition_.relation == Relation::below && bound <= 0) ||
                            (condition_.relation == Relation::at_most && bound < 0);
    if (!name.ends_with('%') || !impossible) return;
    errors_.warn(written_.location(),
                 "the condition '{}' holds only for NaN: {} is between 0 and 100; correct the "
                 "bound",
                 condition_.text, name);
  }

  // Parses "> 2x" and, for spikes, also "median of 50".
  bool parse_factor(Words words) {
    const std::string word(relation_word());
    if (words.size() < 2 || words[0] != ">") return report("needs '> <factor>x' after '{}'", word);
    std::string_view text = words[1];
    const bool has_x = !text.empty() && text.back() == 'x';
    if (has_x) text.remove_suffix(1);
    const auto factor = number_in<double>(text);
    if (!has_x || !factor || !std::isfinite(*factor) || *factor < 1) {
      return report("has '{}' for a factor; write a number of at least 1 and 'x', as in '8x'",
                    words[1]);
    }
    condition_.bound = *factor;
    if (condition_.relation == Relation::spikes) return parse_average(words.subspan(2));
    return words.size() == 2 ||
           report("has '{}' after the factor", fmt::join(words.subspan(2), " "));
  }

  std::string_view relation_word() const {
    return std::ranges::find(kRelations, condition_.relation, &RelationWord::relation)->word;
  }

  bool parse_average(Words words) {
    condition_.window = kSpikeWindow;
    if (words.empty()) return true;
    if (words[0] != "median" && words[0] != "mean") {
      return report("has '{}' in place of 'median' or 'mean'", words[0]);
    }
    if (words[0] == "mean") condition_.average = Average::mean;
    if (words.size() == 1) return true;
    const auto count =
        words.size() == 3 && words[1] == "of" ? number_in<int>(words[2]) : std::nullopt;
    if (!count || *count < 1 || *count > kLargestWindow) {
      return report("has '{}' after '{}'; write 'of' and a number of values from 1 to {}",
                    fmt::join(words.subspan(1), " "), words[0], kLargestWindow);
    }
    condition_.window = static_cast<std::size_t>(*count);
    return true;
  }

  // Each series of a condition keeps this many values.
  static constexpr int kLargestWindow = 10'000;

  const Value& written_;
  ErrorList& errors_;
  const config::StatisticDescriptions* plugin_;
  Condition condition_;
};

}  // namespace

std::vector<Condition> parse_conditions(const Value& value, ErrorList& errors,
                                        const config::StatisticDescriptions* plugin) {
  config::check_not_empty(value, "when", errors);
  std::vector<Condition> conditions;
  for (const Value& item : config::as_list(value)) {
    if (!item.is_string()) {
      errors.add(item.location(), "a condition must be a string, not {}; {}",
                 config::describe(item), kGrammar);
      continue;
    }
    if (auto condition = Parser(item, errors, plugin).parse())
      conditions.push_back(std::move(*condition));
  }
  return conditions;
}

std::vector<TensorName> get_tensors(const Condition& condition) {
  if (!condition.statistic) return {};
  if (condition.tensor) return {*condition.tensor};
  if (condition.statistic->statistic->source() == StatisticSource::scores) {
    return {TensorName::scores};
  }
  // The tensors of an attention are watched only if they are named.
  std::vector<TensorName> tensors;
  for (const TensorName tensor : kLinearTensors) {
    if (is_gemm_input(tensor) || !is_of_cast(*condition.statistic)) {
      tensors.push_back(tensor);
    }
  }
  return tensors;
}

}  // namespace telens::features
