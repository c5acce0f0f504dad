// GemmError: compares a sample of each GEMM's outputs with FP64.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "features/gemm_error/gemm_error_options.h"
#include "hooks/feature_registration.h"
#include "hooks/host_copy.h"
#include "hooks/scheduled_observer.h"
#include "hooks/stream_order.h"

namespace telens::features {

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

// Returns `count` different numbers below `size` (all of them if there are fewer), ascending. They
// are random and depend only on the seed.
std::vector<std::int64_t> sampled_indices(std::uint64_t seed, std::int64_t size,
                                          std::int64_t count);

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

FeatureRegistration gemm_error();

}  // namespace telens::features
