#include "hooks/feature.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <exception>
#include <string_view>

#include "core/base/error.h"
#include "core/torch_compat.h"
#include "hooks/statistic_definition.h"

namespace telens {

Operand Feature::modify_tensor(const FeatureCall&, const ModifyTensorCall& call) {
  raise<UsageError>(
      "modify_tensor_enabled answered true for the {} of {}, but the class has no modify_tensor; "
      "override it, or answer false",
      get_name(call.tensor_name), get_name(call.gemm));
}

void Feature::observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                             TensorReading& reading) {
  // The session has set `evaluation` of the original.
  inspect_tensor(at, *call.source, reading);
}

void Feature::observe_copy(const FeatureCall& at, const ObservedCopy& call) {
  inspect_tensor_postquantize(at, *call.source);
}

void Feature::observe_gemm(const FeatureCall& at, const ObservedGemm& call,
                           std::span<const Alteration> alterations) {
  inspect_gemm(at, *call.source, alterations);
}

void Feature::observe_attention(const FeatureCall& at, const ObservedAttention& call) {
  inspect_attention(at, *call.source);
}

TensorHandle StatisticDefinition::compute_sums(const TensorHandle& tensor) const {
  return add(to_torch(tensor));
}

// ---- exceptions of features

namespace {

// pybind11 appends the stack to the message of a Python exception, innermost frame first. That
// frame shows the place that raised the exception; all others belong to TELens.
std::string with_innermost_frame(const std::string& text) {
  constexpr std::string_view kStack = "\n\nAt:\n  ";
  const std::size_t stack = text.find(kStack);
  if (stack == text.npos) return text;
  const std::size_t frame = stack + kStack.size();
  return fmt::format("{} (at {})", text.substr(0, stack),
                     text.substr(frame, text.find('\n', frame) - frame));
}

}  // namespace

std::string message_of_current_exception() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return with_innermost_frame(error.what());
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

void rethrow_with_context(const std::string& context) {
  rethrow_interruption();
  const std::string message = context + ": " + message_of_current_exception();
  try {
    throw;
  } catch (const ShapeError&) {
    std::throw_with_nested(ShapeError(message));
  } catch (const ConfigError&) {
    std::throw_with_nested(ConfigError(message));
  } catch (const UsageError&) {
    std::throw_with_nested(UsageError(message));
  } catch (...) {
    std::throw_with_nested(Error(message));
  }
}

}  // namespace telens
