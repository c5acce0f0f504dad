#include "features/block_telemetry/block_telemetry.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "features/block_telemetry/block_telemetry_options.h"
#include "features/builtin_features.h"
#include "hooks/statistics/accumulator.h"

namespace telens::features {
namespace {

// Returns the copies that feed GEMMs, as casts of their recipe; rowwise first.
std::vector<CastRequest> running_casts(const ObservedTensor& call) {
  std::vector<CastRequest> casts;
  const auto add = [&](const ObservedOperand& copy, bool columnwise) {
    if (!copy.is_quantized()) return;
    const std::optional<RecipeId> recipe = scheme(copy.mode()).recipe;
    if (recipe && copy.has(columnwise)) casts.push_back({*recipe, copy.format(), columnwise});
  };
  add(call.rowwise, false);
  add(call.columnwise, true);
  return casts;
}

std::optional<std::string> reason_against(const ObservedTensor& call,
                                          const std::vector<CastRequest>& casts) {
  if (casts.empty()) return "no copy with a scale a block runs here";
  if (!call.tensor.defined()) {
    return "it is stored in low precision, the high-precision tensor does not exist";
  }
  for (const CastRequest& cast : casts) {
    if (auto reason = reason_against_copy(call, cast, call.tensor.sizes())) return reason;
  }
  return std::nullopt;
}

// errors, bins: on the host.
void add_blocks(const TensorHandle& errors, const TensorHandle& bins, ScalingMode mode,
                bool columnwise, BlockSums& sums) {
  const auto* const words = errors.const_data_ptr<std::int64_t>();
  const auto* const of_blocks = bins.const_data_ptr<std::int64_t>();
  const std::int64_t columns = errors.size(1);
  for (std::int64_t i = 0; i < bins.numel(); ++i) {
    const auto block = from_words<BlockErrors>(
        {words + i * kBlockErrorsWords, static_cast<std::size_t>(kBlockErrorsWords)});
    BlockPlace place{i / columns, i % columns};
    // Blocks down the columns of the tensor.
    if (columnwise) std::swap(place.row, place.column);
    sums.add(block, static_cast<std::size_t>(of_blocks[i]), mode, place);
  }
}

bool comparable(const std::vector<BlockCopy>& copies) {
  return copies.size() == 2 && copies[0].cast.mode == copies[1].cast.mode &&
         copies[0].cast.format == copies[1].cast.format;
}

TensorHandle compute_difference(const ObservedTensor& call, const std::vector<BlockCopy>& copies) {
  return tensor_ops::copies_difference(copies[0].cast, copies[1].cast,
                                       call.columnwise.blocks().hadamard_signs);
}

}  // namespace

BlockTelemetry::BlockTelemetry(const config::FeatureEntry& entry, FeatureServices& services,
                               HostCopies copies)
    : ScheduledObserver(entry, {.inspect = true, .read_statistics = false}),
      services_(services),
      arrivals_(std::move(copies)) {
  for (const TensorName tensor : kAllTensors) {
    const config::Selection* chosen = selection(std::nullopt, tensor);
    if (chosen == nullptr) continue;
    k_[static_cast<std::size_t>(tensor)] =
        static_cast<std::size_t>(chosen->options_as<BlockTelemetryOptions>().k);
  }
}

// Warns only once, because a model has hundreds of such tensors.
void BlockTelemetry::log_left_out(const FeatureCall& at, TensorName tensor,
                                  std::string_view reason) {
  const bool first = !warned_.exchange(true);
  services_.log_message(
      fmt::format("BlockTelemetry: {} is left out: {}{}", telens::get_name(tensor), reason,
                  first ? "; the log names all such tensors" : ""),
      at.layer_name, first ? debug::LogLevel::warning : debug::LogLevel::info);
}

void BlockTelemetry::observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                                    TensorReading&) {
  if (call.tensor_name == TensorName::weight && !call.first_microbatch) return;
  const std::vector<CastRequest> casts = running_casts(call);
  if (const auto reason = reason_against(call, casts)) {
    log_left_out(at, call.tensor_name, *reason);
    return;
  }
  const std::vector<BlockCopy> copies = block_copies(call, call.tensor, casts);
  if (copies.empty()) return;
  Look look{{at.iteration, std::string(at.layer_name), call.tensor_name, copies[0].cast.mode}, {}};
  const std::lock_guard lock(mutex_);
  const BlockSums none(k_[static_cast<std::size_t>(call.tensor_name)]);
  const auto [entry, is_new] = seen_.try_emplace(look.key, Seen{{none, none}, {}});
  if (call.tensor_name == TensorName::weight && !is_new) return;  // only the first read counts
  std::vector<TensorHandle> found;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    look.columnwise.push_back(casts[i].columnwise);
    found.push_back(tensor_ops::block_errors(copies[i].x, copies[i].cast));
    found.push_back(tensor_ops::scale_bins(copies[i].cast.codes.scale_inv));
  }
  if (comparable(copies)) found.push_back(compute_difference(call, copies));
  ++entry->second.under_way;
  arrivals_.add(std::move(found), std::move(look));
  add_arrived(Waiting::no);  // so that the kept data does not grow with the model
}

void BlockTelemetry::add_arrived(Waiting waiting) {
  for (const auto& [look, tensors] : arrivals_.take(waiting)) {
    Seen& seen = seen_.at(look.key);
    const std::size_t copies = look.columnwise.size();
    for (std::size_t i = 0; i < copies; ++i) {
      const bool columnwise = look.columnwise[i];
      add_blocks(tensors[2 * i], tensors[2 * i + 1], look.key.mode, columnwise,
                 seen.copies[columnwise ? 1 : 0]);
    }
    if (tensors.size() > 2 * copies) {
      const auto* const words = tensors.back().const_data_ptr<std::int64_t>();
      merge(seen.difference, from_words<CopiesDifference>(
                                 {words, static_cast<std::size_t>(kCopiesDifferenceWords)}));
    }
    --seen.under_way;
  }
}

void BlockTelemetry::record_copy(const Key& key, bool columnwise, const BlockSums& sums) {
  const auto series = [&](std::string_view statistic) -> const Series& {
    const std::string name = name_of_copy(statistic, columnwise);
    return services_.series().find_or_add(
        {.layer = key.layer, .tensor = telens::get_name(key.tensor), .statistic = name});
  };
  const std::vector<double> values = sums.values();
  for (std::size_t i = 0; i < values.size(); ++i) {
    services_.record(Row{key.iteration, &series(kBlockStatistics[i]), values[i]});
  }
  HistogramRow scales{key.iteration, &series(scale_histogram_name(key.mode)), sums.blocks(), {}};
  for (std::size_t bin = 0; bin < kScaleBins; ++bin) {
    if (sums.scales()[bin] == 0) continue;
    scales.bins.push_back(
        {static_cast<std::int32_t>(bin), static_cast<std::uint64_t>(sums.scales()[bin])});
  }
  services_.record_histogram(std::move(scales));
  const auto record_worst = [&](std::string_view statistic, const WorstBlocks& worst) {
    using record::Dictionary;
    record::NameTable& names = services_.names();
    for (const auto& [value, place] : worst.list()) {
      services_.record_row(record::BlockRow{
          .iteration = key.iteration,
          .layer = names.id(Dictionary::layer, key.layer),
          .tensor = names.id(Dictionary::tensor, telens::get_name(key.tensor)),
          .statistic = names.id(Dictionary::statistic, name_of_copy(statistic, columnwise)),
          .block_row = static_cast<std::int32_t>(place.row),
          .block_column = static_cast<std::int32_t>(place.column),
          .value = value});
    }
  };
  record_worst(kBlockUnderflows, sums.by_underflows());
  record_worst(kBlockMse, sums.by_mse());
}

void BlockTelemetry::record(const Key& key, const Seen& seen) {
  for (const bool columnwise : {false, true}) {
    const BlockSums& sums = seen.copies[columnwise ? 1 : 0];
    if (sums.blocks() > 0) record_copy(key, columnwise, sums);
  }
  const CopiesDifference& difference = seen.difference;
  if (difference.elements == 0) return;
  const auto elements = static_cast<double>(difference.elements);
  const auto add = [&](std::string_view statistic, double value) {
    const Series& series = services_.series().find_or_add(
        {.layer = key.layer, .tensor = telens::get_name(key.tensor), .statistic = statistic});
    services_.record(Row{key.iteration, &series, value});
  };
  add(kCopiesDiffer, 100.0 * static_cast<double>(difference.different) / elements);
  add(kCopiesRelativeDifference, difference.relative / elements);
}

// Records results in order: results after a pending one wait with it.
void BlockTelemetry::record_arrived(Waiting waiting) {
  std::map<Key, Seen> complete;
  {
    const std::lock_guard lock(mutex_);
    add_arrived(waiting);
    while (!seen_.empty() && seen_.begin()->second.under_way == 0) {
      complete.insert(seen_.extract(seen_.begin()));
    }
  }
  for (const auto& [key, each] : complete) record(key, each);
}

FeatureRegistration block_telemetry() {
  return {block_telemetry_description(),
          [](const config::FeatureEntry& entry, FeatureServices& services) {
            return std::make_unique<BlockTelemetry>(entry, services);
          }};
}

}  // namespace telens::features
