#include "hooks/engine/tensor_observation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/fnv1a.h"
#include "hooks/statistics/catalogue.h"

namespace telens::features {

// ---- accumulators

namespace {

// The quantized copy for the tensor's first GEMM, or for its second GEMM if the first is
// unquantized.
struct ShownCopy {
  const ObservedOperand* operand = nullptr;  // nullptr if neither is quantized
  bool modified = false;                     // by a feature
};

ShownCopy shown_copy(const ObservedTensor& call) {
  if (call.rowwise.is_quantized()) return {&call.rowwise, call.rowwise_modified};
  if (call.columnwise.is_quantized()) return {&call.columnwise, call.columnwise_modified};
  return {};
}

// Returns the copy that the running recipe created; nullptr if the cast belongs to another recipe.
const ObservedOperand* running_copy(const ObservedTensor& call, const CastRequest& cast) {
  const ObservedOperand& copy = cast.columnwise ? call.columnwise : call.rowwise;
  const bool is_of_recipe = copy.is_quantized() && scheme(copy.mode()).recipe == cast.recipe;
  return is_of_recipe ? &copy : nullptr;
}

// Returns true if the codes have the shape of a matrix [rows, columns].
bool fits(const ObservedOperand& copy, bool columnwise, std::int64_t rows, std::int64_t columns) {
  const TensorHandle codes = copy.codes(columnwise).codes;
  if (!codes.defined() || codes.dim() != 2) return false;
  if (columnwise) std::swap(rows, columns);
  const std::int64_t codes_per_byte = scheme(copy.mode()).codes_per_byte();
  return codes.size(0) == rows && codes.size(1) == (columns + codes_per_byte - 1) / codes_per_byte;
}

// Returns the copy with the original matrix in the orientation of its codes. The Hadamard transform
// is orthogonal, so the squared error in FP32 does not depend on whether it is undone.
BlockCopy oriented(BlockCopy copy, bool columnwise, const TensorHandle& matrix) {
  copy.x = matrix;
  if (!columnwise) return copy;
  if (copy.hadamard_signs) {
    copy.x = tensor_ops::hadamard_transform(matrix, *copy.hadamard_signs);
  }
  copy.x = tensor_ops::transpose(copy.x);
  return copy;
}

// Adds the statistics of every copy to its accumulator (kCastSumsWords). Hypothetical casts share
// one read.
void accumulate_block_casts(std::span<const BlockCopy> copies,
                            std::span<const TensorHandle> accumulators) {
  std::vector<ops::WhatIfCast> casts;
  std::vector<TensorHandle> of_casts;
  TensorHandle x;  // shared by all hypothetical casts
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const BlockCopy& copy = copies[i];
    if (copy.what_if) {
      casts.push_back(*copy.what_if);
      of_casts.push_back(accumulators[i]);
      x = copy.x;
    } else {
      tensor_ops::accumulate_block_cast(copy.x, copy.cast, accumulators[i]);
    }
  }
  if (!casts.empty()) tensor_ops::accumulate_what_ifs(x, casts, of_casts);
}

}  // namespace

// ---- casts

std::vector<BlockCopy> block_copies(const ObservedTensor& call, const TensorHandle& x,
                                    std::span<const CastRequest> casts) {
  std::vector<BlockCopy> copies;
  if (casts.empty() || x.numel() == 0) return copies;
  const TensorHandle matrix = tensor_ops::as_matrix(x);
  for (const CastRequest& cast : casts) {
    const bool columnwise = cast.columnwise;
    if (const ObservedOperand* running = running_copy(call, cast)) {
      copies.push_back(
          oriented({.cast = {running->codes(columnwise), running->format(), running->mode()},
                    .hadamard_signs = running->blocks().hadamard_signs},
                   columnwise, matrix));
      continue;
    }
    const auto described =
        tensor_ops::describe_default_cast(cast.recipe, cast.format, call.tensor_name, columnwise);
    if (described.what_if) {
      copies.push_back({.x = matrix, .what_if = described.what_if});
      continue;
    }
    tensor_ops::DefaultCopy made =
        tensor_ops::cast_by_default(matrix, cast.recipe, cast.format, call.tensor_name, columnwise);
    copies.push_back(oriented({.cast = std::move(made.cast), .hadamard_signs = made.hadamard_signs},
                              columnwise, matrix));
  }
  return copies;
}

std::optional<std::string> reason_against_copy(const ObservedTensor& call, const CastRequest& cast,
                                               std::span<const std::int64_t> sizes) {
  if (sizes.empty()) return "a tensor without dimensions has no blocks";
  std::int64_t numel = 1;
  for (const std::int64_t size : sizes) numel *= size;
  if (numel == 0) return std::nullopt;
  const std::int64_t rows = numel / sizes.back();
  const ObservedOperand* running = running_copy(call, cast);
  const auto transformed = [&] {
    return running != nullptr
               ? running->blocks().hadamard_signs.has_value()
               : tensor_ops::describe_default_cast(cast.recipe, cast.format, call.tensor_name, true)
                     .is_transformed;
  };
  if (cast.columnwise && rows % kHadamardSize != 0 && transformed()) {
    return fmt::format(
        "its rows are not divisible by {}, so the Hadamard transform of that copy mixes them with "
        "rows of zeros that are not the tensor's",
        kHadamardSize);
  }
  if (running != nullptr && !fits(*running, cast.columnwise, rows, sizes.back())) {
    return "the codes are of another shape";
  }
  return std::nullopt;
}

std::optional<RunningCast> running_cast(const ObservedTensor& call) {
  const ShownCopy shown = shown_copy(call);
  if (shown.operand == nullptr) return std::nullopt;
  const FormatId format = shown.operand->format();
  if (const auto recipe = scheme(shown.operand->mode()).recipe) {
    const ObservedOperand& second = call.columnwise;
    return RunningCast{*recipe, format, call.rowwise.is_quantized() && call.rowwise.has(false),
                       second.is_quantized() && scheme(second.mode()).recipe == recipe &&
                           second.has(/*columnwise=*/true)};
  }
  const bool per_tensor = call.quantizer && call.quantizer->mode == ScalingMode::tensor;
  if (!per_tensor && !shown.modified) return std::nullopt;
  RunningCast running{RecipeId::fp8_current_scaling, format};
  if (per_tensor) {
    running.format = call.quantizer->format;
    if (call.quantizer->known_scale().defined()) running.recipe = RecipeId::fp8_delayed_scaling;
  }
  running.altered = shown.modified || format != running.format;
  running.altered_format = format;
  return running;
}

TensorHandle CastScales::of(const CastRequest& cast) {
  if (cast.altered) return scale_of_copy();
  if (cast.recipe == RecipeId::fp8_delayed_scaling) return call_.quantizer->known_scale();
  if (!call_.quantizer || !call_.quantizer->uses_current_scaling()) return current(cast.format);
  if (!call_.quantizer->amax_group()) return call_.quantizer->scale_for(x_);
  // A scale that was reduced over ranks is read from the copy, because observing must not
  // communicate.
  const ObservedOperand* copy = shown_copy(call_).operand;
  const bool is_of_format = copy != nullptr && copy->format() == cast.format;
  return is_of_format ? scale_of_copy() : current(cast.format);
}

TensorHandle CastScales::current(FormatId format) {
  const auto known = std::ranges::find(current_, format, &std::pair<FormatId, TensorHandle>::first);
  if (known != current_.end()) return known->second;
  return current_.emplace_back(format, tensor_ops::current_scale(x_, format)).second;
}

// Returns the scale of the copy. The copy stores scale_inv, and 1 / scale_inv may differ from the
// scale in the last bit, which would change some codes. Therefore the scale is selected from
// candidates by their reciprocals. The comparison runs on the tensor's device without
// synchronization.
TensorHandle CastScales::scale_of_copy() {
  const ObservedOperand& copy = *shown_copy(call_).operand;
  std::vector<TensorHandle> candidates;
  if (call_.quantizer) {
    TensorHandle known = call_.quantizer->known_scale();
    if (known.defined()) candidates.push_back(std::move(known));
  }
  candidates.push_back(current(copy.format()));
  return tensor_ops::scale_of(copy.codes(/*columnwise=*/!copy.has(false)).scale_inv, candidates);
}

// ---- accumulators

Accumulators Accumulators::empty(const RequestSet& set, DeviceId device) {
  const auto casts = static_cast<std::int64_t>(set.casts().size());
  Accumulators made{tensor_ops::empty_statistics(casts, device)};
  for (std::size_t i = 0; i < set.block_casts().size(); ++i) {
    made.block_casts.push_back(tensor_ops::empty_block_casts(device));
  }
  for (std::size_t i = 0; i < set.blocks().size(); ++i) {
    made.ranges.push_back(tensor_ops::empty_block_ranges(device));
  }
  return made;
}

void Accumulators::add_blocks(const TensorHandle& x, const RequestSet& set,
                              std::span<const BlockCopy> copies, bool both_orientations) {
  accumulate_block_casts(copies, block_casts);
  for (std::size_t i = 0; i < set.blocks().size(); ++i) {
    const BlockShape& shape = set.blocks()[i];
    tensor_ops::accumulate_block_ranges(x, {shape.size, shape.dims, both_orientations}, ranges[i]);
  }
}

void Accumulators::add(const TensorHandle& x, const RequestSet& set,
                       const tensor_ops::StatisticsCasts& casts, std::span<const BlockCopy> copies,
                       bool both_orientations) {
  tensor_ops::accumulate_statistics(x, casts, sums);
  add_blocks(x, set, copies, both_orientations);
}

Accumulators Accumulators::clone() const {
  Accumulators copy{tensor_ops::clone(sums)};
  for (const TensorHandle& each : block_casts) copy.block_casts.push_back(tensor_ops::clone(each));
  for (const TensorHandle& each : ranges) copy.ranges.push_back(tensor_ops::clone(each));
  return copy;
}

// ---- reads

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
