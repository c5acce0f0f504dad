#include "features/engine/tensor_observation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "features/statistics/finish.h"

namespace telens::features {
namespace {

// Behind the names of an evaluation's statistics.
constexpr std::string_view kEvaluation = "_eval";

// The values of a tensor under their names, each once.
class Rows {
 public:
  Rows(SeriesTable& series, SeriesTable::Names names, TensorName tensor, std::int64_t iteration,
       bool evaluation, const RowAddresses& addresses, std::vector<Row>& rows)
      : series_(series),
        names_(names),
        tensor_(tensor),
        iteration_(iteration),
        suffix_(evaluation ? kEvaluation : ""),
        addresses_(addresses),
        rows_(rows) {}

  void add(const StatisticName& name, double value, bool asked) {
    if (std::ranges::find(added_, name) != added_.end()) return;
    const std::optional<RowAddress> address =
        asked ? addresses_.of(name) : addresses_.of_counters();
    if (!address) return;  // a graph measures it in every iteration, wanted or not
    added_.push_back(name);
    const std::string text = format_statistic_name(name, tensor_).append(suffix_);
    names_.statistic = text;
    rows_.push_back(
        {iteration_, &series_.find_or_add(names_), value, address->loggers, address->kept_in()});
  }

 private:
  SeriesTable& series_;
  SeriesTable::Names names_;
  TensorName tensor_;
  std::int64_t iteration_;
  std::string_view suffix_;
  const RowAddresses& addresses_;
  std::vector<Row>& rows_;
  std::vector<StatisticName> added_;
};

}  // namespace

std::string TensorObservation::name_of(std::string_view layer_name, TensorName tensor,
                                       std::int64_t iteration, bool evaluation) {
  return fmt::format("{} {}{} {} ", iteration, telens::name_of(tensor),
                     evaluation ? kEvaluation : "", layer_name);
}

void TensorObservation::address(const RowAddresses& addresses) {
  const std::lock_guard lock(mutex_);
  addresses_.add(addresses);
}

TensorObservation::Part& TensorObservation::part_for(const RequestSet& set,
                                                     const at::Device& device) {
  const c10::Stream stream = current_stream(device);
  const auto found = std::ranges::find_if(
      parts_, [&](const Part& part) { return part.set == set && part.stream == stream; });
  if (found != parts_.end()) return *found;
  add(set, Accumulators::of_nothing(set, device));
  return parts_.back();
}

void TensorObservation::add(const RequestSet& set, Accumulators sums) {
  const c10::Stream stream = current_stream(sums.sums.device());
  Part part{set, stream, std::move(sums)};
  part.defined.resize(set.defined().size());
  parts_.push_back(std::move(part));
}

bool TensorObservation::is_full() const { return tensor_ == TensorName::weight && !parts_.empty(); }

bool TensorObservation::takes_reads() {
  const std::lock_guard lock(mutex_);
  return !is_full();
}

void TensorObservation::read(const at::Tensor& x, const RequestSet& set, const Read& read) {
  const auto& [casts, copies, scale, defined] = read;
  const bool both_orientations = has_both_orientations(tensor_);
  const std::lock_guard lock(mutex_);
  if (is_full()) return;
  Part& part = part_for(set, x.device());
  if (set.scale_cast()) {
    part.reads.push_back(ops::statistics(x, casts));
    part.scales.push_back(scale);
    part.to.add_blocks(x, set, copies, both_orientations);
  } else {
    part.to.add(x, set, casts, copies, both_orientations);
  }
  for (std::size_t i = 0; i < defined.size(); ++i) part.defined[i].push_back(defined[i]);
}

void TensorObservation::give_sums(std::vector<at::Tensor>& sums) const {
  for (const Part& part : parts_) {
    wait_for(part.stream);
    sums.push_back(part.to.sums);
    for (const auto* all : {&part.reads, &part.to.block_casts, &part.to.ranges}) {
      sums.insert(sums.end(), all->begin(), all->end());
    }
    for (const auto& reads : part.defined) sums.insert(sums.end(), reads.begin(), reads.end());
  }
}

void TensorObservation::add_part(const Part& part, HostSums& sums, ScaleMemory& scales,
                                 Totals& totals) const {
  StatisticsAccumulator all(part.set.casts().size());
  all.add(sums.next_words());
  std::vector<ScaleRead> reads;
  for (const ScaleOrigin& origin : part.scales) {
    StatisticsAccumulator read(part.set.casts().size());
    read.add(sums.next_words());
    all.merge(read);
    reads.push_back({read.tensor(), read.casts()[*part.set.scale_cast()], origin});
  }
  std::vector<std::int64_t> words = all.words();
  for (std::size_t i = 0; i < part.to.block_casts.size() + part.to.ranges.size(); ++i) {
    const std::span<const std::int64_t> more = sums.next_words();
    words.insert(words.end(), more.begin(), more.end());
  }
  TensorResults results(part.set);
  results.add_words(words);
  totals.add(part.set, results);
  if (!part.set.scale_cast()) return;
  const RecipeId recipe = part.set.casts()[*part.set.scale_cast()].recipe;
  const std::string name =
      fmt::format("{} {}{} {}", telens::name_of(recipe), telens::name_of(tensor_),
                  evaluation_ ? kEvaluation : "", layer_name_);
  totals.add(part.set, scales.add(name, iteration_, reads));
}

void TensorObservation::add_defined(const Part& part, HostSums& sums, DefinedStatistics& defined,
                                    Totals& totals) const {
  for (std::size_t i = 0; i < part.defined.size(); ++i) {
    const std::string& name = part.set.defined()[i];
    DefinedSums all(defined.of(name), layer_name_, telens::name_of(tensor_));
    for (std::size_t read = 0; read < part.defined[i].size(); ++read) all.add(sums.next());
    totals.add(name, all);
  }
}

Totals TensorObservation::totals(HostSums& sums, ScaleMemory& scales,
                                 DefinedStatistics& defined) const {
  Totals totals;
  for (const Part& part : parts_) {
    add_part(part, sums, scales, totals);
    add_defined(part, sums, defined, totals);
  }
  return totals;
}

void TensorObservation::append_rows(const Totals& totals, std::string_view group,
                                    SeriesTable& series, std::vector<Row>& rows) const {
  if (totals.empty()) return;
  Rows out(
      series,
      {.layer = layer_name_, .tensor = telens::name_of(tensor_), .statistic = {}, .group = group},
      tensor_, iteration_, evaluation_, addresses_, rows);
  for (const Part& part : parts_) {
    for (const StatisticRequest& request : part.set.requests()) {
      const std::optional<double> value = totals.value(request, part.set);
      if (value) out.add(request.name, *value, true);
    }
  }
  for (const Statistic counter : kTensorCounters) {
    out.add({counter}, telens::finish(counter, totals.tensor()), false);
  }
  for (const Part& part : parts_) {
    for (StatisticRequest request : part.set.requests()) {
      if (!request.is_of_cast()) continue;
      for (const Statistic counter : kCastCounters) {
        request.name.statistic = counter;
        out.add(request.name, *totals.value(request, part.set), false);
      }
    }
  }
}

debug::ReductionGroup TensorObservation::group(const Reductions& reductions) const {
  if (tensor_ == TensorName::weight) return reductions.weights ? weight_group_ : nullptr;
  const auto own = reductions.tensors_of_layers.find(layer_name_);
  return own == reductions.tensors_of_layers.end() ? reductions.tensors : own->second;
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
