#include "features/block_telemetry.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/ops/block_errors.h"
#include "core/quantization/operand.h"
#include "features/block_telemetry_options.h"
#include "features/statistics/accumulator.h"

namespace telens::features {
namespace {

// The copies that feed GEMMs, as casts of their recipe; rowwise first.
std::vector<CastRequest> running_casts(const InspectTensorCall& call) {
  std::vector<CastRequest> casts;
  const auto add = [&](const Operand* operand, bool columnwise) {
    const QuantizedTensor* copy = quantized_or_null(operand);
    if (copy == nullptr) return;
    const std::optional<RecipeId> recipe = block_recipe_of(copy->mode);
    const QuantizedData& data = columnwise ? copy->columnwise : copy->rowwise;
    if (recipe && data.defined()) casts.push_back({*recipe, copy->format, columnwise});
  };
  add(call.rowwise, false);
  add(call.columnwise, true);
  return casts;
}

std::optional<std::string> reason_against(const InspectTensorCall& call,
                                          const std::vector<CastRequest>& casts) {
  if (casts.empty()) return "no copy with a scale a block runs here";
  if (call.tensor == nullptr) {
    return "it is stored in low precision, the high-precision tensor does not exist";
  }
  for (const CastRequest& cast : casts) {
    const auto& x = *call.tensor;
    if (auto reason = reason_against_copy(call, cast, x.sizes(), x.device())) return reason;
  }
  return std::nullopt;
}

// The bin of each scale; contiguous.
std::vector<std::size_t> scale_bins(const at::Tensor& scale_inv) {
  const at::Tensor scales = scale_inv.contiguous();
  std::vector<std::size_t> bins(static_cast<std::size_t>(scales.numel()));
  for (std::size_t i = 0; i < bins.size(); ++i) {
    bins[i] = scales.scalar_type() == at::kByte
                  ? scales.const_data_ptr<std::uint8_t>()[i]
                  : std::bit_cast<std::uint32_t>(scales.const_data_ptr<float>()[i]) >> 23 & 0xFF;
  }
  return bins;
}

void add_blocks(const BlockCopy& copy, bool columnwise, BlockSums& sums) {
  const at::Tensor errors = ops::block_cast_errors(copy.x, copy.cast);
  const auto* const words = errors.const_data_ptr<std::int64_t>();
  const std::vector<std::size_t> bins = scale_bins(copy.cast.codes.scale_inv);
  const std::int64_t columns = errors.size(1);
  for (std::size_t i = 0; i < bins.size(); ++i) {
    const auto block = from_words<BlockErrors>(
        {words + i * kBlockErrorsWords, static_cast<std::size_t>(kBlockErrorsWords)});
    const auto index = static_cast<std::int64_t>(i);
    BlockPlace place{index / columns, index % columns};
    // Blocks down the columns of the tensor.
    if (columnwise) std::swap(place.row, place.column);
    sums.add(block, bins[i], copy.cast.mode, place);
  }
}

bool comparable(const std::vector<BlockCopy>& copies) {
  return copies.size() == 2 && copies[0].cast.mode == copies[1].cast.mode &&
         copies[0].cast.format == copies[1].cast.format;
}

CopiesDifference difference_of(const InspectTensorCall& call,
                               const std::vector<BlockCopy>& copies) {
  const auto signs = std::get<QuantizedTensor>(*call.columnwise).blocks.hadamard_signs;
  const at::Tensor words = ops::block_copies_difference(copies[0].cast, copies[1].cast, signs);
  return from_words<CopiesDifference>(
      {words.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(kCopiesDifferenceWords)});
}

}  // namespace

BlockTelemetry::BlockTelemetry(const config::FeatureEntry& entry, FeatureServices& services)
    : ScheduledFeature(entry, {.inspect = true, .read_statistics = false}), services_(services) {
  for (const TensorName tensor : kAllTensors) {
    const config::Selection* chosen = selection(std::nullopt, tensor);
    if (chosen == nullptr) continue;
    k_[static_cast<std::size_t>(tensor)] =
        static_cast<std::size_t>(BlockTelemetryOptions::from(chosen->parameters).k);
  }
}

// One warning; a model has hundreds of such tensors.
void BlockTelemetry::log_left_out(const FeatureCall& at, TensorName tensor,
                                  std::string_view reason) {
  const bool first = !warned_.exchange(true);
  services_.log_message(fmt::format("BlockTelemetry: {} is left out: {}{}", telens::name_of(tensor),
                                    reason, first ? "; the log names all such tensors" : ""),
                        at.layer_name, first ? debug::LogLevel::warning : debug::LogLevel::info);
}

void BlockTelemetry::inspect_tensor(const FeatureCall& at, const InspectTensorCall& call,
                                    TensorReading&) {
  if (call.tensor_name == TensorName::weight && !call.first_microbatch) return;
  const std::vector<CastRequest> casts = running_casts(call);
  if (const auto reason = reason_against(call, casts)) {
    log_left_out(at, call.tensor_name, *reason);
    return;
  }
  const std::vector<BlockCopy> copies = block_copies(call, *call.tensor, casts);
  if (copies.empty()) return;
  const CopiesDifference difference =
      comparable(copies) ? difference_of(call, copies) : CopiesDifference{};
  const std::lock_guard lock(mutex_);
  const BlockSums none(k_[static_cast<std::size_t>(call.tensor_name)]);
  const auto [entry, is_new] = seen_.try_emplace(
      {at.iteration, std::string(at.layer_name), call.tensor_name, copies[0].cast.mode},
      Seen{{none, none}, {}});
  if (call.tensor_name == TensorName::weight && !is_new) return;  // the first read counts
  Seen& seen = entry->second;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const bool columnwise = casts[i].columnwise;
    add_blocks(copies[i], columnwise, seen.copies[columnwise ? 1 : 0]);
  }
  merge(seen.difference, difference);
}

void BlockTelemetry::record_copy(const Key& key, bool columnwise, const BlockSums& sums) {
  const auto series = [&](std::string_view statistic) -> const Series& {
    const std::string name = name_of_copy(statistic, columnwise);
    return services_.series().find_or_add(
        {.layer = key.layer, .tensor = telens::name_of(key.tensor), .statistic = name});
  };
  const std::vector<double> values = sums.values();
  for (std::size_t i = 0; i < values.size(); ++i) {
    services_.record(Row{key.iteration, &series(kBlockStatistics[i]), values[i]});
  }
  HistogramRow scales{key.iteration, &series(scale_histogram_name(key.mode)), sums.blocks(), {}};
  for (std::size_t bin = 0; bin < kScaleBins; ++bin) {
    if (sums.scales()[bin] == 0) continue;
    scales.bins.push_back({static_cast<std::int32_t>(bin), sums.scales()[bin]});
  }
  services_.record_histogram(std::move(scales));
  const auto record_worst = [&](std::string_view statistic, const WorstBlocks& worst) {
    for (const auto& [value, place] : worst.list()) {
      services_.record_block({key.iteration, &series(statistic), place.row, place.column, value});
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
        {.layer = key.layer, .tensor = telens::name_of(key.tensor), .statistic = statistic});
    services_.record(Row{key.iteration, &series, value});
  };
  add(kCopiesDiffer, 100.0 * static_cast<double>(difference.different) / elements);
  add(kCopiesRelativeDifference, difference.relative / elements);
}

void BlockTelemetry::record_all() {
  std::map<Key, Seen> seen;
  {
    const std::lock_guard lock(mutex_);
    seen.swap(seen_);
  }
  for (const auto& [key, each] : seen) record(key, each);
}

FeatureRegistration block_telemetry() {
  return {block_telemetry_description(),
          [](const config::FeatureEntry& entry, FeatureServices& services) {
            return std::make_unique<BlockTelemetry>(entry, services);
          }};
}

}  // namespace telens::features
