#include "core/ops/scaling.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "core/base/error.h"
#include "core/ops/dispatcher.h"

namespace telens::ops {
namespace {

void check_float(const char* operation, const char* name, const at::Tensor& tensor) {
  if (tensor.scalar_type() != at::kFloat || !tensor.is_contiguous()) {
    raise<ShapeError>("{}: {} has dtype {}{}; expected a contiguous Float tensor", operation, name,
                      c10::toString(tensor.scalar_type()),
                      tensor.is_contiguous() ? "" : " and is not contiguous");
  }
}

at::Tensor scale_from_amax_meta(const at::Tensor& amax, double, double, bool) {
  return at::empty_like(amax);
}

at::Tensor amax_of_history_meta(const at::Tensor& amax_history, c10::string_view algorithm) {
  check_history("amax_of_history", amax_history);
  check_algorithm(algorithm);
  return at::empty({amax_history.size(1)}, amax_history.options());
}

void update_scale_meta(const at::Tensor& amax, at::Tensor& scale, const at::Tensor& fp8_max,
                       std::int64_t, bool) {
  check_update_scale(amax, scale, fp8_max);
}

void advance_history_meta(at::Tensor& amax_history) {
  check_history("advance_history", amax_history);
}

void update_windows_meta(at::TensorList amax_histories, at::TensorList scales,
                         at::ArrayRef<double> fp8_max, c10::string_view algorithm, std::int64_t,
                         bool) {
  check_update_windows(amax_histories, scales, fp8_max, algorithm);
}

}  // namespace

void check_history(const char* operation, const at::Tensor& amax_history) {
  if (amax_history.dim() != 2 || amax_history.size(0) < 1) {
    raise<ShapeError>("{}: amax_history has {} dimensions; expected [length >= 1, slots]",
                      operation, amax_history.dim());
  }
  check_float(operation, "amax_history", amax_history.select(0, 0));
}

void check_algorithm(std::string_view algorithm) {
  if (algorithm != "max" && algorithm != "most_recent") {
    raise<UsageError>(
        "amax_of_history: algorithm \"{}\"; expected \"max\" or \"most_recent\" (a function of "
        "your own is called before the operators)",
        algorithm);
  }
}

void check_update_scale(const at::Tensor& amax, const at::Tensor& scale,
                        const at::Tensor& fp8_max) {
  check_float("update_scale", "amax", amax);
  check_float("update_scale", "scale", scale);
  check_float("update_scale", "fp8_max", fp8_max);
  if (amax.numel() != scale.numel() || fp8_max.numel() != scale.numel()) {
    raise<ShapeError>("update_scale: {} amaxes, {} scales, {} maxima; expected equal numbers",
                      amax.numel(), scale.numel(), fp8_max.numel());
  }
}

void check_update_windows(at::TensorList amax_histories, at::TensorList scales,
                          at::ArrayRef<double> fp8_max, std::string_view algorithm) {
  constexpr auto kName = "update_windows";
  check_algorithm(algorithm);
  if (scales.size() != amax_histories.size() || fp8_max.size() != amax_histories.size()) {
    raise<ShapeError>("{}: {} histories, {} scales, {} maxima; expected equal numbers", kName,
                      amax_histories.size(), scales.size(), fp8_max.size());
  }
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const at::Tensor &history = amax_histories[i], &scale = scales[i];
    check_history(kName, history);
    check_float(kName, "scale", scale);
    if (scale.numel() != history.size(1)) {
      raise<ShapeError>("{}: window {} has {} slots and {} scales; expected equal numbers", kName,
                        i, history.size(1), scale.numel());
    }
    if (scale.device() != history.device() || history.device() != amax_histories[0].device()) {
      raise<ShapeError>(
          "{}: window {} has its history on {}, its scale on {}, and window 0 is on {}; expected "
          "one device; call once a device",
          kName, i, history.device().str(), scale.device().str(), amax_histories[0].device().str());
    }
  }
}

at::Tensor scale_from_amax(const at::Tensor& amax, double fp8_max, double epsilon,
                           bool power_of_two) {
  static const auto handle =
      find_operator<at::Tensor(const at::Tensor&, double, double, bool)>("telens::scale_from_amax");
  return handle.call(amax, fp8_max, epsilon, power_of_two);
}

at::Tensor amax_of_history(const at::Tensor& amax_history, std::string_view algorithm) {
  static const auto handle =
      find_operator<at::Tensor(const at::Tensor&, c10::string_view)>("telens::amax_of_history");
  return handle.call(amax_history, c10::string_view(algorithm.data(), algorithm.size()));
}

void update_scale(const at::Tensor& amax, const at::Tensor& scale, const at::Tensor& fp8_max,
                  std::int64_t margin, bool power_of_two) {
  static const auto handle =
      find_operator<void(const at::Tensor&, at::Tensor&, const at::Tensor&, std::int64_t, bool)>(
          "telens::update_scale");
  at::Tensor target = scale;
  handle.call(amax, target, fp8_max, margin, power_of_two);
}

void advance_history(const at::Tensor& amax_history) {
  static const auto handle = find_operator<void(at::Tensor&)>("telens::advance_history");
  at::Tensor target = amax_history;
  handle.call(target);
}

void update_windows(const WindowUpdate& windows, const WindowFormula& formula) {
  using Signature = void(at::TensorList, at::TensorList, at::ArrayRef<double>, c10::string_view,
                         std::int64_t, bool);
  static const auto handle = find_operator<Signature>("telens::update_windows");
  if (windows.scales.empty()) return;  // no tensor that determines the device
  handle.call(windows.amax_histories, windows.scales, windows.fp8_max, formula.algorithm,
              formula.margin, formula.power_of_two);
}

}  // namespace telens::ops

TORCH_LIBRARY_IMPL(telens, Meta, library) {
  library.impl("scale_from_amax", telens::ops::scale_from_amax_meta);
  library.impl("amax_of_history", telens::ops::amax_of_history_meta);
  library.impl("update_scale", telens::ops::update_scale_meta);
  library.impl("advance_history", telens::ops::advance_history_meta);
  library.impl("update_windows", telens::ops::update_windows_meta);
}
