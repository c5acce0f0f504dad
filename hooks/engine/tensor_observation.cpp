#include "hooks/engine/tensor_observation.h"

#include <algorithm>
#include <utility>

#include "core/base/fnv1a.h"
#include "hooks/statistics/catalogue.h"

namespace telens::features {
namespace {

// Suffix of statistics in evaluation mode.
constexpr std::string_view kEvaluation = "_eval";

// Appends the rows of a tensor's statistics. A statistic is only appended once.
class Rows {
 public:
  Rows(SeriesTable& table, TensorHistory& of, std::string_view group, std::int64_t iteration,
       const RowAddresses& addresses, std::vector<Row>& rows)
      : table_(table), of_(of), iteration_(iteration), addresses_(addresses), rows_(rows) {
    of_.series.begin(group);
  }

  void add(const StatisticName& name, double value, bool asked) {
    const std::size_t known = of_.series.find(name);
    const bool is_new = known == of_.series.size();
    if (!is_new && known < added_.size() && added_[known]) return;
    const std::optional<RowAddress> address =
        asked ? addresses_.of(name) : addresses_.of_counters();
    if (!address) return;  // measured by a graph but not requested in this iteration
    const std::size_t place = is_new ? of_.series.add(name, find_series(name)) : known;
    added_.resize(std::max(added_.size(), place + 1));
    added_[place] = true;
    rows_.push_back({iteration_, &of_.series[place], value, address->loggers, address->kept_in()});
  }

 private:
  const Series& find_series(const StatisticName& name) {
    const std::string statistic =
        format_statistic_name(name, of_.tensor).append(of_.evaluation ? kEvaluation : "");
    return table_.find_or_add({.layer = *of_.layer_name,
                               .tensor = telens::get_name(of_.tensor),
                               .statistic = statistic,
                               .group = of_.series.group()});
  }

  SeriesTable& table_;
  TensorHistory& of_;
  std::int64_t iteration_;
  const RowAddresses& addresses_;
  std::vector<Row>& rows_;
  std::vector<bool> added_;  // by index in of_.series
};

SumsKey make_key(StatisticSource source, const CastRequest& cast) {
  return {.source = source, .cast = cast};
}

}  // namespace

std::uint64_t TensorObservation::hash() const {
  std::uint64_t hash = fnv1a(layer_name());
  hash = mixed(hash, static_cast<std::uint64_t>(of_.tensor));
  hash = mixed(hash, of_.evaluation ? 1 : 0);
  return mixed(hash, static_cast<std::uint64_t>(iteration_));
}

void TensorObservation::address(const RowAddresses& addresses) {
  const std::lock_guard lock(mutex_);
  addresses_.add(addresses);
}

TensorObservation::Part& TensorObservation::part_for(const RequestSet& set, DeviceId device) {
  const StreamHandle stream = current_stream(device);
  const auto found = std::ranges::find_if(
      parts_, [&](const Part& part) { return part.set == set && part.stream == stream; });
  if (found != parts_.end()) return *found;
  add(set, Accumulators::empty(set, device));
  return parts_.back();
}

void TensorObservation::add(const RequestSet& set, Accumulators sums) {
  const StreamHandle stream = current_stream(sums.sums.device());
  Part part{set, stream, std::move(sums)};
  part.defined.resize(set.defined().size());
  parts_.push_back(std::move(part));
}

bool TensorObservation::is_full() const { return is_weight() && !parts_.empty(); }

bool TensorObservation::takes_reads() {
  const std::lock_guard lock(mutex_);
  return !is_full();
}

void TensorObservation::read(const TensorHandle& x, const RequestSet& set, const Read& read) {
  const auto& [casts, copies, scale, defined] = read;
  const bool both_orientations = has_both_orientations(of_.tensor);
  const std::lock_guard lock(mutex_);
  if (is_full()) return;
  Part& part = part_for(set, x.device());
  if (set.scale_cast()) {
    part.reads.push_back(tensor_ops::statistics(x, casts));
    part.scales.push_back(scale);
    part.to.add_blocks(x, set, copies, both_orientations);
  } else {
    part.to.add(x, set, casts, copies, both_orientations);
  }
  for (std::size_t i = 0; i < defined.size(); ++i) part.defined[i].push_back(defined[i]);
}

void TensorObservation::read_scores(const RequestSet& set, TensorHandle sums) {
  const std::lock_guard lock(mutex_);
  part_for(set, sums.device()).scores.push_back(std::move(sums));
}

void TensorObservation::give_sums(std::vector<TensorHandle>& sums) const {
  for (const Part& part : parts_) {
    wait_for(part.stream);
    sums.push_back(part.to.sums);
    for (const auto* all : {&part.reads, &part.to.block_casts, &part.to.ranges, &part.scores}) {
      sums.insert(sums.end(), all->begin(), all->end());
    }
    for (const auto& reads : part.defined) sums.insert(sums.end(), reads.begin(), reads.end());
  }
}

void TensorObservation::add_part(const Part& part, HostSums& sums, Totals& totals) const {
  const RequestSet& set = part.set;
  StatisticsAccumulator all(set.casts().size());
  all.add(sums.next_words());
  std::vector<ScaleRead> reads;
  for (const ScaleOrigin& origin : part.scales) {
    StatisticsAccumulator read(set.casts().size());
    read.add(sums.next_words());
    all.merge(read);
    reads.push_back({read.tensor(), read.casts()[*set.scale_cast()], origin});
  }
  merge(totals.find_or_add<TensorSums>({}), all.tensor());
  for (std::size_t i = 0; i < set.casts().size(); ++i) {
    merge(totals.find_or_add<CastSums>(make_key(StatisticSource::cast, set.casts()[i])),
          all.casts()[i]);
  }
  for (const CastRequest& cast : set.block_casts()) {
    merge(totals.find_or_add<CastSums>(make_key(StatisticSource::cast, cast)),
          from_words<CastSums>(sums.next_words()));
  }
  for (const BlockShape& shape : set.blocks()) {
    merge(totals.find_or_add<BlockRanges>({.source = StatisticSource::blocks, .blocks = shape}),
          from_words<BlockRanges>(sums.next_words()));
  }
  for (std::size_t i = 0; i < part.scores.size(); ++i) {
    const std::span<const std::int64_t> words = sums.next_words();
    merge(totals.find_or_add<TensorSums>({}),
          from_words<TensorSums>(words.first(kTensorSumsWords)));
    merge(totals.find_or_add<ScoreSums>({.source = StatisticSource::scores}),
          from_words<ScoreSums>(words.subspan(kTensorSumsWords)));
  }
  if (!set.scale_cast()) return;
  const CastRequest& cast = set.casts()[*set.scale_cast()];
  merge(totals.find_or_add<ScaleSums>(make_key(StatisticSource::scale, cast)),
        of_.get_scale(cast.recipe).add(iteration_, reads));
}

void TensorObservation::add_defined(const Part& part, HostSums& sums, DefinedStatistics& defined,
                                    Totals& totals) const {
  for (std::size_t i = 0; i < part.defined.size(); ++i) {
    const StatisticId statistic = part.set.defined()[i];
    const DefinedSums of_nothing(defined.of(statistic), layer_name(), telens::get_name(of_.tensor));
    DefinedSums all = of_nothing;
    for (std::size_t read = 0; read < part.defined[i].size(); ++read) all.add(sums.next());
    totals
        .find_or_add<DefinedSums>({.source = StatisticSource::plugin, .statistic = statistic},
                                  of_nothing)
        .merge(all);
  }
}

Totals TensorObservation::totals(HostSums& sums, DefinedStatistics& defined) const {
  Totals totals;
  for (const Part& part : parts_) {
    add_part(part, sums, totals);
    add_defined(part, sums, defined, totals);
  }
  return totals;
}

void TensorObservation::append_rows(const Totals& totals, std::string_view group,
                                    SeriesTable& series, std::vector<Row>& rows) const {
  if (totals.empty()) return;
  Rows out(series, of_, group, iteration_, addresses_, rows);
  for (const Part& part : parts_) {
    for (const StatisticRequest& request : part.set.requests()) {
      const std::optional<double> value = totals.value(request, part.set);
      if (value) out.add(request.name, *value, true);
    }
  }
  for (const StatisticId counter : counters_from(StatisticSource::tensor)) {
    out.add({counter}, telens::finish(counter, totals.tensor()), false);
  }
  for (const Part& part : parts_) {
    for (StatisticRequest request : part.set.requests()) {
      if (!request.is_of_cast()) continue;
      for (const StatisticId counter : counters_from(StatisticSource::cast)) {
        request.name.statistic = counter;
        out.add(request.name, *totals.value(request, part.set), false);
      }
    }
  }
}

RankGroupPtr TensorObservation::group(const Reductions& reductions) const {
  if (is_weight()) return reductions.weights ? weight_group_ : nullptr;
  const auto own = reductions.tensors_of_layers.find(layer_name());
  return own == reductions.tensors_of_layers.end() ? reductions.tensors : own->second;
}

void TensorObservation::set_replicas(RankGroupPtr group) {
  const std::lock_guard lock(mutex_);
  replicas_ = std::move(group);
}

// Replicas are only recognized within the world and within the tensor-parallel group.
bool TensorObservation::is_brought_by_another(const RankGroup& group,
                                              const Reductions& reductions) const {
  if (!has_several_ranks(replicas_) || replicas_->rank() == 0) return false;
  const std::string id = group.name();
  return id == replicas_->name() || (reductions.world && id == reductions.world->name());
}

bool TensorObservation::waits(const Reductions& reductions) const {
  if (!has_several_ranks(group(reductions))) return false;
  if (!is_weight()) return !reductions.tensors_are_due;
  return !reductions.weights_are_due && has_several_ranks(reductions.world);
}

bool has_both_orientations(TensorName tensor) {
  return tensor == TensorName::activation || tensor == TensorName::weight;
}

}  // namespace telens::features
