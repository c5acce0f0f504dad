#include "core/modules/layer/linear_parallel.h"

#include "core/base/error.h"
#include "core/modules/layer/overlap.h"

namespace telens {
namespace {

ParallelMode parallel_mode_from_name(const char* module, const std::string& name) {
  if (name.empty()) return ParallelMode::none;
  if (name == "column") return ParallelMode::column;
  if (name == "row") return ParallelMode::row;
  raise<UsageError>("{}: parallel_mode is '{}'; expected None, column or row", module, name);
}

}  // namespace

std::int64_t divide(const char* module, const char* what, std::int64_t size, std::int64_t parts) {
  if (size % parts != 0) {
    raise<UsageError>(
        "{}: {} is {}, which {} tensor-parallel ranks cannot divide; give it a "
        "multiple of tp_size",
        module, what, size, parts);
  }
  return size / parts;
}

LinearParallel linear_parallel(const char* module, ParameterOptions& options) {
  options.resolve_tensor_parallel_size(module);
  options.sequence_parallel = options.sequence_parallel && options.tp_size > 1;
  return {.mode = parallel_mode_from_name(module, options.parallel_mode),
          .sequence = options.sequence_parallel,
          .size = options.tp_size,
          .group = options.tp_group,
          .symmetric_sum = symmetric_sum_from_name(module, options.symmetric_ar_type)};
}

void LinearParallel::request_overlap(const char* module, const OverlapSwitches& switches,
                                     const ParameterOptions& options) {
  overlap = LinearOverlap::make(module, switches, *this);
  if (overlap && options.delay_wgrad_compute && mode == ParallelMode::column &&
      overlap->kind(Gemm::wgrad) == OverlapKind::beside) {
    raise<UsageError>(
        "{}: ub_bulk_wgrad overlaps a reduce-scatter with the backward's wgrad, which "
        "delay_wgrad_compute defers; disable one of them",
        module);
  }
}

std::int64_t LinearParallel::own_in_features(const char* module, std::int64_t in_features) const {
  return mode == ParallelMode::row ? divide(module, "in_features", in_features, size) : in_features;
}

std::int64_t LinearParallel::own_out_features(const char* module, std::int64_t out_features) const {
  return mode == ParallelMode::column ? divide(module, "out_features", out_features, size)
                                      : out_features;
}

bool LinearParallel::is_replicated_side(TensorName name) const {
  const bool before = name == TensorName::activation || name == TensorName::dgrad;
  const bool after = name == TensorName::output || name == TensorName::gradient;
  return mode == ParallelMode::column ? before : after;
}

ParameterPlacement LinearParallel::weight_placement() const {
  if (mode == ParallelMode::none) return {};
  return {.partition_dim = mode == ParallelMode::row ? 1 : 0};
}

ParameterPlacement LinearParallel::bias_placement() const {
  switch (mode) {
    case ParallelMode::column:
      return {.partition_dim = 0};
    case ParallelMode::row:
      return {.sequence_parallel = sequence};
    case ParallelMode::none:
      break;
  }
  return {};
}

}  // namespace telens
