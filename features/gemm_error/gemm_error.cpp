// GemmError: compares a sample of each GEMM's outputs with FP64.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/formats/philox.h"
#include "features/builtin_features.h"
#include "features/gemm_error/gemm_error_options.h"
#include "features/sample_seed.h"
#include "hooks/feature_registry.h"
#include "hooks/observer.h"
#include "hooks/streams.h"
#include "hooks/tensor_ops.h"

namespace telens::features {
namespace {

// Sums over outputs and their exact values; micro-batches are added.
struct GemmErrorSums {
  double error = 0;           // sum of out - exact
  double squared_error = 0;   // sum of (out - exact)^2
  double exact = 0;           // sum of |exact|
  double squared_exact = 0;   // sum of exact^2
  double squared_output = 0;  // sum of out^2
  double product = 0;         // sum of out * exact

  // Both are FP64, contiguous and on the host, and have the same shape.
  void add(const TensorHandle& output, const TensorHandle& exact_output);

  // If the exact values are all zero, a nonzero error is infinite, and a zero error is 0. The
  // cosine of two zeros is 1. A NaN anywhere makes all three NaN.
  double relative_error() const;
  double mean_error() const;
  double cosine() const;
};

class GemmError final : public ScheduledObserver {
 public:
  GemmError(const config::FeatureEntry& entry, FeatureServices& services);

  // Gathers the data that the selected GEMMs will need from an operand.
  void observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                      TensorReading& reading) override;
  // Compares the sampled outputs with FP64.
  void observe_gemm(const FeatureCall& at, const ObservedGemm& call,
                    std::span<const Alteration> alterations) override;
  void step(std::int64_t iteration) override { record_arrived(Waiting::no); }
  void end() override { record_arrived(Waiting::yes); }

 private:
  struct Measured {
    std::int64_t iteration;
    std::string layer;
    Gemm gemm;
    auto operator<=>(const Measured&) const = default;
  };

  // Reports why a GEMM does not have a row: one warning, and a line in the log for each layer and
  // GEMM.
  void say_left_out(const FeatureCall& at, Gemm gemm, std::string_view reason);
  // Records comparisons that have reached the host.
  void record_arrived(Waiting waiting);
  void record(const Measured& measured, const GemmErrorSums& sums);

  FeatureServices& services_;
  std::array<std::optional<std::int64_t>, kAllGemms.size()> samples_;  // nullopt if not selected
  Arrivals<std::vector<Measured>> arrivals_;
  std::mutex mutex_;  // guards the members below
  std::set<std::pair<std::string, Gemm>> left_out_;
  // The samples of this iteration.
  std::vector<Measured> measured_;     // one for each pair of outputs
  std::vector<TensorHandle> outputs_;  // FP64, on their device: an output, then its expected value
  StreamSet streams_;                  // the streams that computed them
};

// The place of an operand in a GEMM: whether it forms the rows or the columns of the output, and
// which of its dimensions they are.
//   fprop: output[m, n] = sum over k of activation[m, k] x weight[n, k]
//   dgrad: dgrad [m, k] = sum over n of gradient  [m, n] x weight[n, k]
//   wgrad: wgrad [n, k] = sum over m of gradient  [m, n] x activation[m, k]
struct Place {
  Gemm gemm;
  bool makes_rows;
  int dimension;
};

std::array<Place, 2> get_places(TensorName input) {
  switch (input) {
    case TensorName::activation:
      return {{{Gemm::fprop, true, 0}, {Gemm::wgrad, false, 1}}};
    case TensorName::weight:
      return {{{Gemm::fprop, false, 0}, {Gemm::dgrad, false, 1}}};
    default:
      return {{{Gemm::dgrad, true, 0}, {Gemm::wgrad, true, 1}}};
  }
}

// The sampled rows (or columns) of an output, and the parts of an operand from which they are
// computed.
struct Side {
  TensorHandle indices;
  TensorHandle values = {};  // [indices, summed over], in high precision; see `source` if undefined
  std::int64_t size = 0;     // rows (or columns) of the output
  // The source of the values if the sum is over rows from all ranks: this rank has only its own
  // rows.
  enum class Source : std::uint8_t { kept, gathered_values, unknown } source = Source::kept;
};

// Kept from one forward until its backward: a few rows per operand, never whole tensors.
struct Kept {
  std::array<std::array<Side, 2>, kAllGemms.size()> sides;  // by GEMM; rows, then columns

  Side& side(Gemm gemm, bool rows) { return sides[static_cast<std::size_t>(gemm)][rows ? 0 : 1]; }
};

// Returns the seed with which rows or columns of a GEMM are sampled.
std::uint64_t make_seed(const FeatureCall& at, Gemm gemm, bool rows) {
  const std::uint64_t place = static_cast<std::uint64_t>(gemm) * 2 + (rows ? 0 : 1);
  return sample_seed(at.layer_name, at.iteration, place);
}

std::int64_t root_above(std::int64_t samples) {
  return static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(samples))));
}

// Returns true if the second GEMM reads the tensor itself. The values that ranks gather for it are
// then in high precision and were not changed by a feature.
bool is_plain_in_second_gemm(const ObservedTensor& call) {
  return call.columnwise.defined() && !call.columnwise.is_quantized() && call.tensor.defined() &&
         call.columnwise.plain().is_same(call.tensor);
}

// Gathers the data that is known about the sampled rows (or columns) before the GEMM runs.
Side sample_side(const ObservedTensor& call, const Place& place, const TensorHandle& values,
                 const std::vector<std::int64_t>& sample) {
  const TensorHandle indices = copy_to_device(sample, values.device());
  Side side{.indices = indices, .size = values.size(place.dimension)};
  if (place.dimension == 0) {
    side.values = tensor_ops::select(values, 0, indices);
    if (!call.first_row) return side;
    side.indices = tensor_ops::add(indices, *call.first_row);
    side.size *= call.parallel_size;
  } else if (!call.first_row) {
    side.values = tensor_ops::select(values, 1, indices);
  } else {
    side.source =
        is_plain_in_second_gemm(call) ? Side::Source::gathered_values : Side::Source::unknown;
  }
  return side;
}

// Gathers the data that is known after the GEMM has run. operand: the operand of wgrad, [summed
// over, rows (or columns)].
void complete(Side& side, const ObservedOperand& operand) {
  if (side.source != Side::Source::gathered_values || operand.is_quantized()) return;
  side.values = tensor_ops::select(operand.plain(), 1, side.indices);
}

// Returns the number of elements that the GEMM has added up for each output element.
std::int64_t summed_over(const ObservedGemm& call) {
  const TensorHandle plain = call.a.is_quantized() ? TensorHandle() : call.a.plain();
  const std::span<const std::int64_t> sizes =
      call.a.is_quantized() ? call.a.sizes() : plain.sizes();
  return call.gemm == Gemm::wgrad ? sizes[0] : sizes.back();
}

// Returns the reason why the output cannot be compared with the product of the two sides; "" if it
// can.
std::string_view reason_against(const ObservedGemm& call, const Side& rows, const Side& columns) {
  if (!rows.values.defined() || !columns.values.defined()) {
    return "it sums over rows of all ranks, and the rows of other ranks are only known after their "
           "cast";
  }
  const bool is_whole = call.output.dim() == 2 && call.output.size(0) == rows.size &&
                        call.output.size(1) == columns.size &&
                        rows.values.size(1) == summed_over(call) &&
                        columns.values.size(1) == summed_over(call);
  return is_whole ? "" : "it takes a part of an operand";
}

// Returns a matrix. For a weight that is stored in low precision, returns the stored values.
TensorHandle get_values(const ObservedTensor& call) {
  if (call.tensor.defined()) return call.tensor;
  return call.rowwise.is_quantized() ? call.rowwise.dequantize() : call.rowwise.plain();
}

std::string_view output_name(Gemm gemm) {
  switch (gemm) {
    case Gemm::fprop:
      return telens::get_name(TensorName::output);
    case Gemm::dgrad:
      return telens::get_name(TensorName::dgrad);
    case Gemm::wgrad:
      break;
  }
  return telens::get_name(TensorName::wgrad);
}

double ratio(double numerator, double denominator) {
  if (denominator == 0 && numerator == 0) return 0;
  return numerator / denominator;
}

// Returns `count` different numbers below `size` (all of them if there are fewer), ascending. They
// are random and depend only on the seed.
std::vector<std::int64_t> sampled_indices(std::uint64_t seed, std::int64_t size,
                                          std::int64_t count) {
  std::set<std::int64_t> chosen;
  if (count >= size) {
    for (std::int64_t i = 0; i < size; ++i) chosen.insert(i);
  }
  const PhiloxKey key{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  // Floyd's sampling without repetition (Bentley and Floyd, CACM 30(9), 1987).
  for (std::int64_t last = size - count; count < size && last < size; ++last) {
    const PhiloxCounter words = philox4x32(
        {static_cast<std::uint32_t>(last), static_cast<std::uint32_t>(last >> 32), 0, 0}, key);
    const std::uint64_t random = static_cast<std::uint64_t>(words[1]) << 32 | words[0];
    const auto drawn = static_cast<std::int64_t>(random % static_cast<std::uint64_t>(last + 1));
    if (!chosen.insert(drawn).second) chosen.insert(last);
  }
  return {chosen.begin(), chosen.end()};
}

}  // namespace

void GemmErrorSums::add(const TensorHandle& output, const TensorHandle& exact_output) {
  const std::span<const double> out(output.const_data_ptr<double>(),
                                    static_cast<std::size_t>(output.numel()));
  const std::span<const double> reference(exact_output.const_data_ptr<double>(),
                                          static_cast<std::size_t>(exact_output.numel()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double difference = out[i] - reference[i];
    error += difference;
    squared_error += difference * difference;
    exact += std::abs(reference[i]);
    squared_exact += reference[i] * reference[i];
    squared_output += out[i] * out[i];
    product += out[i] * reference[i];
  }
}

double GemmErrorSums::relative_error() const {
  return ratio(std::sqrt(squared_error), std::sqrt(squared_exact));
}

double GemmErrorSums::mean_error() const { return ratio(error, exact); }

double GemmErrorSums::cosine() const {
  if (squared_exact == 0 && squared_output == 0) return 1;
  return ratio(product, std::sqrt(squared_exact) * std::sqrt(squared_output));
}

GemmError::GemmError(const config::FeatureEntry& entry, FeatureServices& services)
    : ScheduledObserver(entry, {.inspect = true, .read_statistics = false, .inspect_gemm = true}),
      services_(services) {
  for (const Gemm gemm : kAllGemms) {
    if (const config::Selection* chosen = selection(gemm, std::nullopt)) {
      samples_[static_cast<std::size_t>(gemm)] = chosen->options_as<GemmErrorOptions>().samples;
    }
  }
}

void GemmError::observe_tensor(const FeatureCall& at, const ObservedTensor& call, TensorReading&) {
  if (!is_gemm_input(call.tensor_name)) return;
  if (!*at.kept) *at.kept = std::make_shared<Kept>();
  auto& kept = *static_cast<Kept*>(at.kept->get());
  TensorHandle values;
  for (const Place& place : get_places(call.tensor_name)) {
    const auto samples = samples_[static_cast<std::size_t>(place.gemm)];
    const config::Selection* chosen = selection(place.gemm, std::nullopt);
    if (!samples || !chosen->schedule.due(at.iteration, thinning_factor())) continue;
    if (!values.defined()) values = get_values(call);
    // Samples about as many rows as columns.
    const std::int64_t rows = root_above(*samples);
    const std::int64_t count = place.makes_rows ? rows : (*samples + rows - 1) / rows;
    const std::uint64_t seed = make_seed(at, place.gemm, place.makes_rows);
    kept.side(place.gemm, place.makes_rows) = sample_side(
        call, place, values, sampled_indices(seed, values.size(place.dimension), count));
  }
}

void GemmError::observe_gemm(const FeatureCall& at, const ObservedGemm& call,
                             std::span<const Alteration>) {
  if (!*at.kept) return;
  auto& kept = *static_cast<Kept*>(at.kept->get());
  Side rows = std::exchange(kept.side(call.gemm, true), {});
  Side columns = std::exchange(kept.side(call.gemm, false), {});
  if (!rows.indices.defined() || !columns.indices.defined()) return;
  if (rows.indices.numel() == 0 || columns.indices.numel() == 0) return;
  complete(rows, call.a);
  complete(columns, call.b);
  if (const auto reason = reason_against(call, rows, columns); !reason.empty()) {
    return say_left_out(at, call.gemm, reason);
  }
  const TensorHandle exact =
      tensor_ops::exact_product(rows.values, columns.values, call.bias, columns.indices);
  const TensorHandle output = tensor_ops::crossings(call.output, rows.indices, columns.indices);
  const std::lock_guard lock(mutex_);
  measured_.push_back({at.iteration, std::string(at.layer_name), call.gemm});
  outputs_.push_back(output);
  outputs_.push_back(exact);
  streams_.add(exact.device());
}

void GemmError::say_left_out(const FeatureCall& at, Gemm gemm, std::string_view reason) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    if (!left_out_.emplace(at.layer_name, gemm).second) return;
    first = left_out_.size() == 1;
  }
  services_.log_message(fmt::format("GemmError: {} is not measured: {}{}", telens::get_name(gemm),
                                    reason, first ? "; the log names all such GEMMs" : ""),
                        at.layer_name, first ? debug::LogLevel::warning : debug::LogLevel::info);
}

void GemmError::record(const Measured& measured, const GemmErrorSums& sums) {
  const auto add = [&](std::string_view statistic, double value) {
    const Series& series = services_.series().find_or_add({.layer = measured.layer,
                                                           .tensor = output_name(measured.gemm),
                                                           .gemm = telens::get_name(measured.gemm),
                                                           .statistic = statistic});
    services_.record(Row{measured.iteration, &series, value});
  };
  add(kGemmRelativeError, sums.relative_error());
  add(kGemmMeanError, sums.mean_error());
  add(kGemmCosine, sums.cosine());
}

void GemmError::record_arrived(Waiting waiting) {
  {
    const std::lock_guard lock(mutex_);
    if (!measured_.empty()) {
      streams_.join();
      arrivals_.add(std::exchange(outputs_, {}), std::exchange(measured_, {}));
    }
  }
  for (const auto& [of, outputs] : arrivals_.take(waiting)) {
    std::map<Measured, GemmErrorSums> sums;
    for (std::size_t i = 0; i < of.size(); ++i) {
      sums[of[i]].add(outputs[2 * i], outputs[2 * i + 1]);
    }
    for (const auto& [measured, all] : sums) record(measured, all);
  }
}

FeatureRegistration gemm_error() {
  return {gemm_error_description(),
          [](const config::FeatureEntry& entry, FeatureServices& services) {
            return std::make_unique<GemmError>(entry, services);
          }};
}

}  // namespace telens::features
