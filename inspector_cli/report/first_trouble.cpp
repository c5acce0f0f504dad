#include "inspector_cli/report/first_trouble.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "analysis/series.h"
#include "analysis/skipped_steps.h"
#include "core/base/text.h"
#include "hooks/statistics/histogram.h"
#include "hooks/statistics/statistic_name.h"
#include "inspector_cli/report/analysis_display.h"
#include "inspector_cli/report/open_run.h"
#include "inspector_cli/terminal/terminal.h"
#include "inspector_cli/terminal/text.h"

namespace telens::cli {
namespace {

using analysis::describe_iterations;
using analysis::for_each_histogram;
using analysis::kNotableLoss;
using analysis::lost_share;
using analysis::SeriesKey;
using analysis::Severity;
using analysis::TensorKey;
using analysis::TensorSummaries;
using analysis::TensorSummary;
using analysis::UseRecord;
using analysis::WarmUp;

using record::Dictionary;

// Ids of the statistics that indicate a problem.
struct Troubles {
  StatisticId nonfinite = statistic("nonfinite");
  StatisticId saturated = statistic("saturated");
  StatisticId overflows = statistic("overflows%");
  StatisticId underflows = statistic("underflows%");

  bool has(StatisticId one) const {
    return one == nonfinite || one == saturated || one == overflows || one == underflows;
  }
};

// Returns the statistics of the running recipe by id; null for other statistics.
std::vector<StatisticId> running_statistics(const record::RunReader& run) {
  std::vector<StatisticId> statistics;
  for (const std::string& name : run.names(Dictionary::statistic)) {
    const auto parsed = parse_statistic_name(name);
    statistics.push_back(parsed && !parsed->what_if ? parsed->statistic : nullptr);
  }
  return statistics;
}

// Finds the earliest value above zero and counts the tensors that have one in that iteration. A
// tensor on several ranks counts once.
class Earliest {
 public:
  explicit Earliest(const record::RunReader& run) : run_(run) {}

  void add(const record::Record& record) {
    if (!(record.value > 0) || (first_ && record.iteration > first_->iteration)) return;
    const Trouble trouble{{record.layer, record.tensor, record.gemm, record.statistic},
                          record.iteration,
                          record.value};
    if (first_ && trouble.iteration < first_->iteration) {
      first_.reset();
      tensors_.clear();
    }
    tensors_.emplace(record.layer, record.tensor);
    if (!first_ || get_order_in_step(trouble.where, run_) < get_order_in_step(first_->where, run_))
      first_ = trouble;
  }
  const std::optional<Trouble>& first() const { return first_; }
  std::int64_t others() const {
    return tensors_.empty() ? 0 : static_cast<std::int64_t>(tensors_.size()) - 1;
  }

 private:
  const record::RunReader& run_;
  std::optional<Trouble> first_;
  std::set<std::pair<std::int32_t, std::int32_t>> tensors_;
};

void find_scalar(const record::RunReader& run, const record::RecordQuery& query,
                 const std::vector<record::Scalar>& scalars, FirstTrouble& trouble) {
  for (const record::Scalar& scalar : scalars) {
    if (std::isfinite(scalar.value)) continue;
    if (query.rank && *query.rank != scalar.rank) continue;
    if (scalar.iteration < query.first_iteration || scalar.iteration > query.last_iteration)
      continue;
    if (trouble.scalar && trouble.scalar->iteration <= scalar.iteration) continue;
    trouble.scalar = Trouble{{}, scalar.iteration, scalar.value};
    trouble.scalar_name = run.names(Dictionary::word)[scalar.name];
  }
}

// Counts non-finite elements in histograms. Returns false if the run does not contain histograms.
bool find_in_histograms(const record::RunReader& run, const record::RecordQuery& query,
                        Earliest& nonfinite) {
  record::RecordQuery of_histograms = query;
  std::vector<std::int32_t>& ids = of_histograms.statistics.emplace();
  const auto& names = run.names(Dictionary::statistic);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (parse_histogram_name(names[i])) ids.push_back(static_cast<std::int32_t>(i));
  }
  if (ids.empty()) return false;
  // Sums over the ranks and micro-batches of an iteration.
  std::map<std::pair<std::int64_t, TensorKey>, double> counts;
  for_each_histogram(run, of_histograms,
                     [&](const TensorKey& key, std::int64_t iteration, const Histogram& histogram) {
                       const double count = count_nonfinite(histogram).all();
                       if (count > 0) counts[{iteration, key}] += count;
                     });
  for (const auto& [where, count] : counts) {
    const auto& [iteration, key] = where;
    nonfinite.add({iteration, key.layer, key.tensor, record::kNoName, record::kNoName,
                   record::kNoName, count});
  }
  return true;
}

// Ignores infinite gradients of steps that a loss scaler skipped while it searched for its scale,
// warm-up included.
void leave_skipped_steps_out(const record::RunReader& run, const WarmUp& warm_up,
                             const record::RecordQuery& query,
                             const std::vector<std::int32_t>& nonfinite, FirstTrouble& trouble) {
  if (!trouble.nonfinite || std::get<0>(get_order_in_step(trouble.nonfinite->where, run)) == 0)
    return;
  const auto skipped =
      diagnosis::steps_skipped_by_loss_scaler(diagnosis::Facts(run, diagnosis::kOfSkippedSteps));
  if (skipped.empty()) return;
  record::RecordQuery again = query;
  again.statistics = nonfinite;
  Earliest earliest(run);
  for_each_record(run, again, [&](const record::Record& record) {
    const SeriesKey key{record.layer, record.tensor, record.gemm, record.statistic};
    const bool backward = std::get<0>(get_order_in_step(key, run)) == 1;
    const bool looks = backward && warm_up.covers(record.layer, record.iteration);
    if (!looks && !skipped.contains(record.iteration)) earliest.add(record);
  });
  trouble.nonfinite = earliest.first();
  trouble.also = earliest.others();
  trouble.skipped_steps = skipped.size();
}

// Returns the row with the largest severity; nullopt if no severity is above zero.
template <typename Of>
std::optional<TensorSummary> largest(const std::vector<TensorSummary>& rows, const Of& severity) {
  std::optional<TensorSummary> found;
  for (const TensorSummary& row : rows) {
    if (severity(row).only_warm_up() || !(severity(row).value() > 0)) continue;
    if (!found || severity(row).value() > severity(*found).value()) found = row;
  }
  return found;
}

const Severity& clipped(const TensorSummary& row) { return row.clipped; }
const Severity& lost(const TensorSummary& row) { return row.lost; }

// Returns the row with the largest overflows%; nullopt if none is above zero. Ignores rows that
// were only recorded in warm-up.
std::optional<TensorSummary> find_most_beyond(const std::vector<TensorSummary>& rows) {
  std::optional<TensorSummary> found;
  for (const TensorSummary& row : rows) {
    const double beyond = row.overflows.value_or(0);
    if (row.sort_key.only_warm_up || !(beyond > 0)) continue;
    if (!found || beyond > *found->overflows) found = row;
  }
  return found;
}

std::string elements(double count) {
  return fmt::format("{:.0f} element{}", count, count == 1 ? "" : "s");
}

std::string make_label(const TensorSummary& row, const record::RunReader& run) {
  return make_label(SeriesKey{row.layer, row.tensor, row.gemm}, run);
}

std::string about_nonfinite(const FirstTrouble& trouble, const record::RunReader& run) {
  const Trouble& bad = *trouble.nonfinite;
  const std::string others =
      trouble.also > 0
          ? fmt::format(", and in {} more tensor{}", trouble.also, trouble.also == 1 ? "" : "s")
          : "";
  return fmt::format("first non-finite: iteration {}, {}: {}{}", bad.iteration,
                     make_label(bad.where, run), elements(bad.value), others);
}

// Describes which cast clipped most, how often and how much; "" if no percentage was recorded.
std::string about_clipping(const FirstTrouble& trouble, const record::RunReader& run) {
  if (!trouble.clips_most) return "";
  const Severity& clips = trouble.clips_most->clipped;
  return fmt::format("most in {}: up to {:.2g} %, in {} of {} iterations",
                     make_label(*trouble.clips_most, run), clips.largest(), clips.persisting(),
                     clips.observed());
}

std::optional<Sentence> about_overflow(const FirstTrouble& trouble, const record::RunReader& run) {
  if (!trouble.overflow && !trouble.clips_most) return std::nullopt;
  const bool notable =
      trouble.clips_most && lost_share(0, trouble.clips_most->clipped.value()) >= kNotableLoss;
  const std::string most = about_clipping(trouble, run);
  std::string text = "overflows: " + most;
  if (const auto& first = trouble.overflow) {
    // Delayed scaling clips a few elements whenever a tensor grows, because its scale follows
    // later.
    const std::string_view what =
        notable || most.empty() ? "first clipping: " : "occasional clipping (harmless): first at ";
    text = fmt::format("{}iteration {}, {}: {} clipped{}{}", what, first->iteration,
                       make_label(first->where, run), elements(first->value),
                       most.empty() ? "" : "; ", most);
  }
  return Sentence{std::move(text), notable ? Gravity::notable : Gravity::plain};
}

std::optional<Sentence> about_loss(const FirstTrouble& trouble, const record::RunReader& run) {
  if (!trouble.loses_most || trouble.loses_most->lost.value() < kNotableLoss) return std::nullopt;
  const TensorSummary& row = *trouble.loses_most;
  const double clips = lost_share(0, row.clipped.value());
  const double underflows = 100 * (row.lost.value() - clips);
  if (underflows < 100 * clips) return std::nullopt;  // about_overflow() reports it
  return Sentence{
      fmt::format("largest loss: {}: {:.3g} % of its elements underflow on average, in "
                  "{} of {} iterations",
                  make_label(row, run), underflows, row.lost.persisting(), row.lost.observed()),
      Gravity::notable};
}

Sentence about_nothing(const FirstTrouble& trouble, const record::RunReader& run) {
  if (trouble.rounds_most) {
    return {
        fmt::format("{} (up to {:.2g} % of {} rounded to the largest value)",
                    trouble.nonfinite_measured ? "no NaN, Inf or clipping recorded"
                                               : "no clipping recorded; NaN and Inf not measured",
                    *trouble.rounds_most->overflows, make_label(*trouble.rounds_most, run)),
        trouble.nonfinite_measured ? Gravity::fine : Gravity::plain};
  }
  if (trouble.nonfinite_measured && trouble.overflow_measured) {
    return {"no NaN, Inf or overflow recorded", Gravity::fine};
  }
  if (trouble.nonfinite_measured) {
    return {"no NaN or Inf recorded; overflows not measured", Gravity::plain};
  }
  if (trouble.overflow_measured) {
    return {"no overflow recorded; NaN and Inf not measured", Gravity::plain};
  }
  return {"NaN, Inf and overflows not measured", Gravity::plain};
}

Color get_color(Gravity gravity) {
  if (gravity == Gravity::grave) return Color::red;
  return gravity == Gravity::notable ? Color::yellow : Color::green;
}

}  // namespace

struct FirstTroubleFinder::State {
  State(const record::RunReader& reader, const WarmUp& warm)
      : run(reader),
        warm_up(warm),
        meanings(running_statistics(reader)),
        nonfinite(reader),
        overflow(reader),
        summaries(reader, warm) {}

  const record::RunReader& run;
  const WarmUp& warm_up;
  const Troubles troubles;
  std::vector<StatisticId> meanings;  // by id
  std::vector<std::int32_t> statistics;
  FirstTrouble trouble;
  Earliest nonfinite;
  Earliest overflow;
  TensorSummaries summaries;
};

FirstTroubleFinder::FirstTroubleFinder(const record::RunReader& run, const WarmUp& warm_up)
    : state_(std::make_unique<State>(run, warm_up)) {
  for (std::size_t i = 0; i < state_->meanings.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (state_->troubles.has(state_->meanings[i])) state_->statistics.push_back(id);
  }
}

FirstTroubleFinder::~FirstTroubleFinder() = default;

const std::vector<std::int32_t>& FirstTroubleFinder::statistics() const {
  return state_->statistics;
}

void FirstTroubleFinder::add(const record::Record& record) {
  State& state = *state_;
  if (record.statistic == record::kNoName) return;
  const StatisticId statistic = state.meanings[record.statistic];
  if (!state.troubles.has(statistic)) return;
  if (statistic == state.troubles.nonfinite) {
    state.trouble.nonfinite_measured = true;
    state.nonfinite.add(record);
  } else if (statistic != state.troubles.underflows) {
    state.trouble.overflow_measured = true;
  }
  // overflows% is not used: an amax exceeds the range of its own scale if that scale was rounded
  // down.
  const bool clips = statistic == state.troubles.saturated;
  if (clips && !state.warm_up.covers(record.layer, record.iteration)) state.overflow.add(record);
  state.summaries.add(record);
}

FirstTrouble FirstTroubleFinder::result(const record::RecordQuery& query,
                                        const std::vector<record::Scalar>& scalars) {
  FirstTrouble& trouble = state_->trouble;
  if (find_in_histograms(state_->run, query, state_->nonfinite)) trouble.nonfinite_measured = true;
  trouble.nonfinite = state_->nonfinite.first();
  trouble.also = state_->nonfinite.others();
  std::vector<std::int32_t> counts;
  for (const std::int32_t id : state_->statistics) {
    if (state_->meanings[id] == state_->troubles.nonfinite) counts.push_back(id);
  }
  leave_skipped_steps_out(state_->run, state_->warm_up, query, counts, trouble);
  trouble.overflow = state_->overflow.first();
  const std::vector<TensorSummary> rows = state_->summaries.worst_first();
  trouble.clips_most = largest(rows, clipped);
  trouble.loses_most = largest(rows, lost);
  if (!trouble.clips_most && !trouble.overflow) trouble.rounds_most = find_most_beyond(rows);
  find_scalar(state_->run, query, scalars, trouble);
  return std::move(trouble);
}

void for_each_record(const record::RunReader& run, const record::RecordQuery& query,
                     FirstTroubleFinder& finder, const UseRecord& use) {
  std::vector<bool> used(run.names(Dictionary::statistic).size(), !query.statistics);
  record::RecordQuery both = query;
  if (query.statistics) {
    for (const std::int32_t id : *query.statistics) used[id] = true;
    both.statistics->insert(both.statistics->end(), finder.statistics().begin(),
                            finder.statistics().end());
  }
  for_each_record(run, both, [&](const record::Record& record) {
    finder.add(record);
    if (record.statistic == record::kNoName ? !query.statistics : used[record.statistic]) {
      use(record);
    }
  });
}

FirstTrouble find_first_trouble(const record::RunReader& run, const WarmUp& warm_up,
                                const record::RecordQuery& query) {
  FirstTroubleFinder finder(run, warm_up);
  record::RecordQuery needed = query;
  needed.statistics = finder.statistics();
  for_each_record(run, needed, [&](const record::Record& record) { finder.add(record); });
  return finder.result(query, run.scalars());
}

std::vector<Sentence> sentences(const FirstTrouble& trouble, const WarmUp& warm_up,
                                const record::RunReader& run) {
  std::vector<Sentence> all;
  if (trouble.nonfinite) all.push_back({about_nonfinite(trouble, run), Gravity::grave});
  if (trouble.scalar) {
    all.push_back({fmt::format("{} not finite: from iteration {}", printable(trouble.scalar_name),
                               trouble.scalar->iteration),
                   Gravity::grave});
  }
  if (auto loss = about_loss(trouble, run)) all.push_back(std::move(*loss));
  if (auto overflow = about_overflow(trouble, run)) all.push_back(std::move(*overflow));
  if (all.empty() && trouble.skipped_steps == 0) all.push_back(about_nothing(trouble, run));
  if (trouble.skipped_steps > 0) {
    all.push_back({fmt::format("loss scaling: infinite gradients in {} step{}, which {} skipped",
                               trouble.skipped_steps, trouble.skipped_steps == 1 ? "" : "s",
                               trouble.skipped_steps == 1 ? "was" : "were"),
                   Gravity::plain});
  }
  if (!warm_up.empty()) {
    all.push_back({fmt::format("warm-up ignored: {} of {} layer{} (no amax history yet)",
                               describe_iterations(warm_up), warm_up.layers(),
                               warm_up.layers() == 1 ? "" : "s"),
                   Gravity::plain});
  }
  return all;
}

void print_pointer(const std::string& run) {
  // A command that wraps cannot be copied, so RUN replaces a path that does not fit.
  std::string line = fmt::format("next: telens diagnose {}", printable(shell_word(run)));
  const auto width = stdout_is_terminal() ? static_cast<std::size_t>(terminal_width()) : SIZE_MAX;
  if (line.size() > width) line = "next: telens diagnose RUN";
  fmt::print("{}\n", colored(line, Color::dim));
}

void print_sentences(const std::vector<Sentence>& sentences) {
  const auto width = stdout_is_terminal() ? static_cast<std::size_t>(terminal_width()) : SIZE_MAX;
  for (const auto& [text, gravity] : sentences) {
    for (const std::string& line : wrapped(text, width)) {
      fmt::print("{}\n", gravity == Gravity::plain ? line : colored(line, get_color(gravity)));
    }
  }
}

}  // namespace telens::cli
