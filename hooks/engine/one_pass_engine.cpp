#include "hooks/engine/one_pass_engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "core/base/fnv1a.h"
#include "core/formats/dispatch.h"
#include "hooks/config/suggestions.h"
#include "hooks/engine/rank_exchange.h"
#include "hooks/sections.h"
#include "hooks/statistics/catalogue.h"

namespace telens::features {
namespace {

StatisticName parse(const std::string& text, const config::StatisticDescriptions* plugin) {
  if (const auto name = parse_statistic_name(text, plugin)) return *name;
  raise<UsageError>("unknown statistic '{}'{}", text,
                    config::suggestion(text, known_statistic_names(plugin)));
}

// ---- reading

// Returns the codes of a weight without a high-precision tensor; nullptr for other tensors.
const ObservedOperand* stored_codes(const ObservedTensor& call) {
  if (call.tensor.defined() || call.scores != nullptr) return nullptr;
  if (call.rowwise.is_quantized()) return &call.rowwise;
  return call.columnwise.is_quantized() ? &call.columnwise : nullptr;
}

// Returns the group over which the sums of a weight are merged; null if they stay local.
RankGroupPtr weight_group(const ObservedTensor& call) {
  return call.tensor_name == TensorName::weight ? call.parallel_group : nullptr;
}

// Returns the group whose ranks read the same tensor; null if only this rank reads it.
RankGroupPtr replica_group(const ObservedTensor& call) {
  return call.replicated ? call.parallel_group : nullptr;
}

// Returns true if the statistic can be computed from codes and scales.
bool needs_no_original(const StatisticName& name) {
  return !name.what_if && name.statistic->needs == config::Needs::codes;
}

// Returns true for the tensor statistics that are available for an attention's scores, which are
// never stored.
bool is_known_of_scores(StatisticId statistic) {
  static const std::vector<StatisticId> known = [] {
    std::vector<StatisticId> statistics = statistics_from(StatisticSource::scores);
    for (const char* name : {"min", "max", "numel", "nan", "posinf", "neginf", "zeros", "zeros%",
                             "subnormals", "nonfinite", "cur_amax"}) {
      statistics.push_back(telens::statistic(name));
    }
    return statistics;
  }();
  return std::ranges::find(known, statistic) != known.end();
}

class Reading final : public TensorReading {
 public:
  Reading(OnePassEngine& engine, LayerReads& layer, std::int64_t iteration,
          const ObservedTensor& call)
      : engine_(engine),
        layer_(layer),
        iteration_(iteration),
        call_(call),
        stored_(stored_codes(call_)),
        running_(running_cast(call_)) {}

  void begin_reader(std::uint64_t rings) override {
    rings_ = rings;
    addresses_.emplace_back();
  }

  std::optional<std::string> want(const StatisticsRequest& request) override {
    std::map<std::string, std::vector<std::string>> left_out;
    const auto& wanted = static_cast<const StatisticsList&>(request);
    for (const StatisticName& name : wanted.statistics) {
      if (const auto reason = reason_against(name)) {
        left_out[*reason].push_back(format_statistic_name(name, call_.tensor_name));
      } else {
        if (addresses_.empty()) begin_reader(0);
        addresses_.back().add(name, wanted.logged, rings_);
      }
    }
    if (left_out.empty()) return std::nullopt;
    std::vector<std::string> sentences;
    for (const auto& [reason, names] : left_out) {
      sentences.push_back(fmt::format("{}: {}", fmt::join(names, ", "), reason));
    }
    return fmt::format("{}", fmt::join(sentences, "; "));
  }

  void read() override {
    if (is_nothing_to_read()) return;
    const auto observation = engine_.observation(layer_, call_, iteration_);
    for (const RowAddresses& each : addresses_) observation->address(each);
    if (call_.replicated) observation->set_replicas(replica_group(call_));
    if (!observation->takes_reads()) return;
    if (call_.scores != nullptr) {
      observation->read_scores(set_, tensor_ops::attention_statistics(*call_.scores));
      return;
    }
    const TensorHandle x = original();
    TensorObservation::Read read = prepared(x);
    read.defined = read_defined(x);
    observation->read(x, set_, read);
  }

  void capture(DueReaders due) override {
    if (is_nothing_to_read()) return;
    if (call_.scores != nullptr) {
      raise<UsageError>(
          "layer '{}': the scores of an attention cannot be read in a graph; leave `scores` out, "
          "or run the layer outside of the graph",
          layer_.name());
    }
    const TensorHandle x = original();
    engine_.captured().capture({&layer_, call_.tensor_name, call_.evaluation, weight_group(call_),
                                set_, addresses_, std::move(due)},
                               x, [&] { return prepared(x); });
  }

 private:
  bool is_nothing_to_read() const {
    const bool counted = call_.tensor_name == TensorName::weight && !call_.first_microbatch;
    return set_.empty() || counted;
  }

  TensorHandle original() const { return stored_ ? stored_->dequantize() : call_.tensor; }

  // Returns the casts, copies and scale of the read, without the sums of plugin statistics.
  TensorObservation::Read prepared(const TensorHandle& x) const {
    TensorObservation::Read read;
    CastScales scales(call_, x);
    for (const CastRequest& cast : set_.casts()) {
      read.casts.scales.push_back(stored_ ? stored_scale() : scales.of(cast));
      read.casts.formats.push_back(cast.format);
    }
    read.casts.moments = set_.moments();
    read.copies = block_copies(call_, x, set_.block_casts());
    if (set_.scale_cast()) read.scale = scale_origin();
    return read;
  }

  // Calls the plugins' definitions. They are user code, so no lock may be held.
  std::vector<TensorHandle> read_defined(const TensorHandle& x) {
    std::vector<TensorHandle> sums;
    if (x.numel() == 0) return sums;
    for (const StatisticId statistic : set_.defined()) {
      sums.push_back(engine_.defined().of(statistic).add(x, layer_.name(),
                                                         telens::get_name(call_.tensor_name)));
    }
    return sums;
  }

  // Returns a scale whose reciprocal is the stored scale_inv: scale_inv is an FP32 reciprocal, and
  // inverting such a number twice restores it.
  TensorHandle stored_scale() const {
    return tensor_ops::reciprocal(stored_->codes(/*columnwise=*/!stored_->has(false)).scale_inv);
  }

  // Returns the origin of the scale. Requires a running recipe with one scale per tensor.
  ScaleOrigin scale_origin() const {
    const double largest = dispatch_fp8_format(
        running_->altered ? running_->altered_format : running_->format, "scale statistics",
        []<typename Format>() { return double{Format::kMax}; });
    if (running_->altered) return {largest};
    const std::int64_t margin = call_.follows_delayed ? call_.delayed->margin : 0;
    return {largest, margin, call_.quantizer->history_updates};
  }

  std::optional<std::string> reason_against_scale(const StatisticName& name) const {
    if (is_block_recipe(running_->recipe)) return "each block has a separate scale here";
    const bool has_history = running_->altered ||
                             running_->recipe != RecipeId::fp8_delayed_scaling ||
                             call_.quantizer->follows_history();
    if (name.statistic->needs != config::Needs::history || has_history) return std::nullopt;
    return "the scale does not follow an amax history";
  }

  // Adds the statistic to the read. Returns the reason if it is not defined for this tensor.
  std::optional<std::string> reason_against(const StatisticName& name) {
    if (call_.scores != nullptr) {
      if (!is_known_of_scores(name.statistic)) return "scores are never stored whole";
      set_.add(name, std::nullopt);
      return std::nullopt;
    }
    if (name.statistic->source() == StatisticSource::scores) return "only `scores` have it";
    const bool readable = call_.tensor.defined() || (stored_ && needs_no_original(name));
    if (!readable) return "the high-precision tensor does not exist";
    if (running_ && name.statistic->source() == StatisticSource::scale) {
      if (auto reason = reason_against_scale(name)) return reason;
    }
    const std::optional<CastRequest> cast = requested_cast(name, running_);
    if (cast && is_block_recipe(cast->recipe)) {
      const std::span<const std::int64_t> sizes = stored_ ? stored_->sizes() : call_.tensor.sizes();
      if (auto reason = reason_against_copy(call_, *cast, sizes)) return reason;
    }
    if (set_.add(name, running_)) return std::nullopt;
    if (!running_) return "it runs unquantized here";
    if (name.columnwise) return "no columnwise copy with separate scales is used here";
    return "that recipe does not run here";
  }

  OnePassEngine& engine_;
  LayerReads& layer_;
  std::int64_t iteration_;
  const ObservedTensor call_;
  const ObservedOperand* stored_;
  std::optional<RunningCast> running_;
  RequestSet set_;
  std::vector<RowAddresses> addresses_;  // one per reader
  std::uint64_t rings_ = 0;
};

}  // namespace

StatisticsRequestPtr OnePassEngine::prepare(std::span<const std::string> names, bool logged) {
  std::vector<StatisticName> statistics;
  for (const std::string& name : names) {
    statistics.push_back(parse(name, defined_.descriptions()));
  }
  return std::make_shared<StatisticsList>(std::move(statistics), logged);
}

std::vector<std::optional<double>> OnePassEngine::evaluate(const StatisticsRequest& request,
                                                           const ScriptTensor& of,
                                                           const TensorHandle& tensor,
                                                           const RankGroupPtr& group) {
  const auto& names = static_cast<const StatisticsList&>(request).statistics;
  const std::vector<TensorHandle> read{
      tensor_ops::to_host(tensor_ops::statistics(tensor))};  // waits
  std::vector<AnySums> all{from_words<TensorSums>(HostSums(read).next_words())};
  std::vector<SumsKey> keys{{}};
  for (const StatisticName& each : names) {
    if (each.statistic->source() != StatisticSource::plugin) continue;
    const std::string name = fmt::format("{} {} {}", of.iteration, of.name, of.layer_name);
    GuardedStatistic& statistic = defined_.of(each.statistic);
    DefinedSums sums(statistic, {}, name);
    if (tensor.numel() > 0) sums.add(statistic.add(tensor, {}, name));
    all.emplace_back(std::move(sums));
    keys.push_back({.source = StatisticSource::plugin, .statistic = each.statistic});
  }
  if (has_several_ranks(group)) {
    const std::uint64_t hash = mixed(mixed(fnv1a(of.layer_name), fnv1a(of.name)),
                                     static_cast<std::uint64_t>(of.iteration));
    std::vector<SharedSums> shared;
    for (std::size_t i = 0; i < all.size(); ++i) {
      shared.push_back({mixed(hash, keys[i].hash()), &all[i]});
    }
    merge_over_ranks(shared, *group);
  }
  const auto& sums = std::get<TensorSums>(all.front());
  if (sums.numel == 0) return std::vector<std::optional<double>>(names.size());
  auto plugin = all.begin();
  std::vector<std::optional<double>> values;
  for (const StatisticName& each : names) {
    if (each.statistic->source() != StatisticSource::plugin) {
      values.emplace_back(finish(each.statistic, sums));
    } else {
      values.push_back(std::get<DefinedSums>(*++plugin).finish());
    }
  }
  return values;
}

LayerReads& OnePassEngine::layer(std::string_view name) {
  const std::lock_guard lock(layers_mutex_);
  const auto known = layers_.find(name);
  if (known != layers_.end()) return *known->second;
  auto made = std::make_unique<LayerReads>(std::string(name));
  return *layers_.emplace(made->name(), std::move(made)).first->second;
}

std::unique_ptr<TensorReading> OnePassEngine::begin(ObservedLayer& layer, std::int64_t iteration,
                                                    const ObservedTensor& call) {
  return std::make_unique<Reading>(*this, static_cast<LayerReads&>(layer), iteration, call);
}

std::shared_ptr<TensorObservation> OnePassEngine::observation(LayerReads& layer,
                                                              const ObservedTensor& call,
                                                              std::int64_t iteration) {
  const RankGroupPtr group = weight_group(call);
  if (has_several_ranks(group)) weight_groups_.add(group);
  return layer.observation(call.tensor_name, call.evaluation, iteration, group, next_observation_);
}

// ---- the end of an iteration: rows from sums, merged over the ranks that share a tensor

namespace {

// Collects the sums of a collect() by group, and merges them.
class Exchanges {
 public:
  explicit Exchanges(const Reductions& reductions) : reductions_(reductions) {}

  void add(const RankGroupPtr& group) {
    if (has_several_ranks(group)) groups_.try_emplace(group->name(), group);
  }

  // Adds the sums of an observation to its group. No effect if the group has a single rank.
  void add(const RankGroupPtr& group, const TensorObservation& observation, Totals& totals) {
    if (!has_several_ranks(group)) return;
    add(group);
    const std::uint64_t hash = observation.hash();
    std::vector<SharedSums>& shared = shared_[group->name()];
    const bool brings_nothing = observation.is_brought_by_another(*group, reductions_);
    for (Totals::Slot& each : totals.slots()) {
      if (brings_nothing) bring_nothing(each.sums);
      shared.push_back({mixed(hash, each.key.hash()), &each.sums});
    }
  }

  // Merges the sums of this group first. Returns the notes of its ranks.
  std::vector<Notes> run_first(RankGroup& group, const Notes& notes) {
    const std::string id = group.name();
    groups_.erase(id);
    const std::vector<SharedSums> sums = std::exchange(shared_[id], {});
    return merge_over_ranks(sums, group, notes);
  }

  // Merges the sums of the remaining groups, ordered by name: ranks that share several groups must
  // use the same order.
  void run_all() {
    for (const auto& [id, group] : groups_) merge_over_ranks(shared_[id], *group);
  }

 private:
  const Reductions& reductions_;
  Groups groups_;
  std::map<std::string, std::vector<SharedSums>> shared_;
};

// Removes and returns the first word of every rank's notes.
Notes take_first(std::vector<Notes>& of_ranks) {
  Notes first;
  for (Notes& notes : of_ranks) {
    first.push_back(notes.front());
    notes.erase(notes.begin());
  }
  return first;
}

// Returns true if these reductions require an exchange with other ranks.
bool exchanges_any(const Reductions& reductions) {
  const bool of_world = reductions.weights_are_due || reductions.decisions_are_due;
  if (of_world && has_several_ranks(reductions.world)) return true;
  if (!reductions.tensors_are_due) return false;
  return has_several_ranks(reductions.tensors) ||
         std::ranges::any_of(reductions.tensors_of_layers, [](const auto& of_layer) {
           return has_several_ranks(of_layer.second);
         });
}

}  // namespace

Observations OnePassEngine::take_observations(const Reductions& reductions) {
  Observations taken;
  {
    const std::lock_guard lock(layers_mutex_);
    for (const auto& [name, layer] : layers_) layer->take(reductions, taken);
  }
  std::ranges::sort(taken, {}, [](const auto& each) { return each->number(); });
  return taken;
}

// Returns the totals in the order of the observations, which is the order of their sums.
std::vector<Totals> OnePassEngine::get_totals(const Arrived& arrived) {
  std::vector<Totals> totals;
  HostSums sums(arrived.tensors);
  for (const auto& each : arrived.work) totals.push_back(each->totals(sums, defined_));
  return totals;
}

std::vector<RankGroupPtr> OnePassEngine::exchange(const Observations& observations,
                                                  std::vector<Totals>& totals,
                                                  const Reductions& reductions,
                                                  Collected& collected) {
  std::vector<RankGroupPtr> shared_with(observations.size());
  Exchanges exchanges(reductions);
  const auto share_where = [&](bool weights, const auto& is_shared) {
    for (std::size_t i = 0; i < observations.size(); ++i) {
      if (observations[i]->is_weight() != weights) continue;
      RankGroupPtr group = observations[i]->group(reductions);
      if (!has_several_ranks(group) || !is_shared(*group)) continue;
      exchanges.add(group, *observations[i], totals[i]);
      shared_with[i] = std::move(group);
    }
  };
  if (reductions.tensors_are_due) {
    exchanges.add(reductions.tensors);
    for (const auto& [layer, group] : reductions.tensors_of_layers) exchanges.add(group);
    share_where(/*weights=*/false, [](const auto&) { return true; });
  }
  // Whether to share weights may differ between ranks; when they are due may not.
  if (has_several_ranks(reductions.world) &&
      (reductions.weights_are_due || reductions.decisions_are_due)) {
    Notes own;
    if (reductions.weights_are_due) own.push_back(weight_groups_.note(reductions.weights));
    if (reductions.decisions_are_due) {
      own.insert(own.end(), reductions.decisions.begin(), reductions.decisions.end());
    }
    std::vector<Notes> notes = exchanges.run_first(*reductions.world, own);
    if (reductions.weights_are_due) {
      const Groups& agreed = weight_groups_.agree(take_first(notes), *reductions.world);
      for (const auto& [id, group] : agreed) exchanges.add(group);
      share_where(/*weights=*/true,
                  [&](const RankGroup& group) { return agreed.contains(group.name()); });
    }
    if (reductions.decisions_are_due) collected.decisions = std::move(notes);
  }
  exchanges.run_all();
  return shared_with;
}

Collected OnePassEngine::collect(std::int64_t iteration, const Reductions& reductions,
                                 Waiting waiting) {
  Observations newest = take_observations(reductions);
  captured_.end_iteration(
      iteration, [&](const CapturedRead& read, std::int64_t of) -> auto& {
        // Reads outside of this graph may already have created the observation.
        TensorHistory& history = read.layer->history(read.tensor, read.evaluation);
        const auto known = std::ranges::find_if(
            newest, [&](const auto& each) { return each->is_of(history, of); });
        if (known != newest.end()) return **known;
        return *newest.emplace_back(std::make_shared<TensorObservation>(
            history, of, read.weight_group, next_observation_++));
      });
  std::vector<TensorHandle> sums;
  for (const auto& each : newest) each->give_sums(sums);
  arrivals_.add(std::move(sums), std::move(newest));
  const bool shares = exchanges_any(reductions);
  std::vector<Arrived> arrived = arrivals_.take(shares ? Waiting::yes : waiting);
  Collected collected;
  for (Arrived& each : arrived) {
    std::vector<Totals> totals = get_totals(each);
    std::vector<RankGroupPtr> shared_with(each.work.size());
    // Copies from an earlier step were not due in that step, so no other rank contributes to them.
    if (shares && &each == &arrived.back()) {
      const double begin = seconds_now();
      shared_with = exchange(each.work, totals, reductions, collected);
      collected.exchange_seconds = seconds_now() - begin;
    }
    for (std::size_t i = 0; i < each.work.size(); ++i) {
      each.work[i]->append_rows(totals[i], telens::get_name(shared_with[i]), series_,
                                collected.rows);
    }
  }
  return collected;
}

}  // namespace telens::features

namespace telens {

bool is_builtin_statistic(std::string_view name) { return parse_statistic_name(name).has_value(); }

std::unique_ptr<StatisticsEngine> make_statistics_engine(SeriesTable& series,
                                                         const StatisticRegistry* defined,
                                                         OnStatisticFailure on_failure,
                                                         HostCopies copies) {
  return std::make_unique<features::OnePassEngine>(series, defined, std::move(on_failure),
                                                   std::move(copies));
}

}  // namespace telens
