#include "python/bindings/module.h"

#include <c10/core/GradMode.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "core/hook_points.h"
#include "core/ops/attention.h"
#include "python/bindings/distributed.h"
#include "python/bindings/gil.h"
#include "python/bindings/quantized_tensor.h"
#include "python/bindings/quantizers.h"

namespace telens::python {

namespace py = pybind11;

namespace {

Gemm gemm_named(const std::string& name) {
  const auto gemm = gemm_from_name(name);
  if (!gemm) {
    raise<UsageError>("'{}' is not a GEMM; expected fprop, dgrad or wgrad", name);
  }
  return *gemm;
}

TensorName tensor_named(const std::string& name, LayerKind kind = LayerKind::linear) {
  const auto tensor = tensor_from_name(name);
  if (!tensor || is_of_attention(*tensor) != (kind == LayerKind::attention)) {
    raise<UsageError>("'{}' is not a tensor of {}", name,
                      kind == LayerKind::attention
                          ? "an attention; expected query, key, value, scores, attention_output or "
                            "a gradient such as query_gradient"
                          : "a layer; expected activation, weight, gradient, output, wgrad or "
                            "dgrad");
  }
  return *tensor;
}

// `filled` is the feature's result for the operand in `out`: its own tensors, or others.
void take_over(const py::object& out, const Operand& filled) {
  if (is_wrapped_quantized(out.ptr()) != is_quantized(filled)) {
    raise<UsageError>(
        "modify_tensor: the feature filled `out` with a {} tensor, and it is a {} tensor; pass "
        "the object that it returned without `out`",
        is_quantized(filled) ? "quantized" : "plain", is_quantized(filled) ? "plain" : "quantized");
  }
  if (is_quantized(filled)) {
    unwrap_quantized(out.ptr()) = std::get<QuantizedTensor>(filled);
    return;
  }
  const at::Tensor& target = THPVariable_Unpack(out.ptr());
  const auto& values = std::get<at::Tensor>(filled);
  const c10::AutoGradMode no_grad(false);
  if (!values.is_same(target)) target.copy_(values);
}

// Adds a batch dimension to an attention of two or three dimensions.
at::Tensor in_four_dimensions(at::Tensor tensor) {
  while (tensor.dim() < 4) tensor = tensor.unsqueeze(0);
  return tensor;
}

// A layer or attention that Python code watches itself: it has a name and hook points, and no
// modules.
class WatchedLayer {
 public:
  WatchedLayer(std::string name, bool attention)
      : hooks_(std::make_unique<LayerHooks>(
            std::move(name), attention ? LayerKind::attention : LayerKind::linear)) {}

  // Queries the features again, as at the start of a forward.
  void begin_forward(bool under_recipe) {
    const WithoutGil no_gil;
    plan_ = hooks_->begin_forward({.under_recipe = under_recipe, .asks_of_modified_gemms = true});
  }

  // True while begin_forward would ask no feature.
  bool sleeps(bool under_recipe) const { return hooks_->sleeps({.under_recipe = under_recipe}); }

  bool fp8_gemm_enabled(const std::string& gemm) const {
    return !plan_ || !plan_->runs_in_high_precision(gemm_named(gemm));
  }
  bool modify_tensor_enabled(const std::string& gemm, const std::string& tensor) const {
    return plan_ && plan_->modifies(gemm_named(gemm), tensor_named(tensor));
  }
  bool inspect_tensor_enabled(const std::string& tensor) const {
    return plan_ && plan_->inspects(tensor_named(tensor, hooks_->kind()));
  }
  bool inspect_tensor_postquantize_enabled(const std::string& gemm,
                                           const std::string& tensor) const {
    return plan_ && plan_->inspects_quantized(gemm_named(gemm), tensor_named(tensor));
  }

  py::object modify_tensor(const std::string& gemm, const std::string& tensor_name,
                           const at::Tensor& tensor,
                           const std::shared_ptr<Quantizer>& default_quantizer,
                           std::optional<at::ScalarType> dtype, const py::object& out) {
    const hook_points::ListenerCall listener(plan());
    if (!listener || !modify_tensor_enabled(gemm, tensor_name)) {
      return py::cast(tensor);
    }
    std::optional<Operand> target;
    if (!out.is_none()) target = to_operand(out);
    const ModifyTensorCall call{gemm_named(gemm),
                                tensor_named(tensor_name),
                                tensor,
                                default_quantizer.get(),
                                dtype.value_or(tensor.scalar_type()),
                                target ? &*target : nullptr};
    const Operand result = [&] {
      const WithoutGil no_gil;
      return listener->modify_tensor(*hooks_, *plan_, call);
    }();
    if (!target) return from_operand(result);
    take_over(out, *target);
    return py::none();
  }

  // cast_elsewhere: the copies come from a cast of another library, without a Quantizer.
  void inspect_tensor(const std::string& tensor_name, const std::optional<at::Tensor>& tensor,
                      const py::object& rowwise, const py::object& columnwise,
                      const std::shared_ptr<Quantizer>& quantizer, const py::object& tp_group,
                      std::int64_t tp_size, bool cast_elsewhere) {
    const hook_points::ListenerCall listener(plan());
    if (!listener || !inspect_tensor_enabled(tensor_name)) {
      return;
    }
    const auto operand = [](const py::object& given) {
      return given.is_none() ? std::nullopt : std::optional(to_operand(given));
    };
    const std::optional<Operand> first = operand(rowwise);
    const std::optional<Operand> second = operand(columnwise);
    if (!tensor && !first && !second) {
      raise<UsageError>("inspect_tensor: '{}' has neither a tensor nor a copy; pass one of them",
                        tensor_name);
    }
    const ProcessGroupPtr group = to_process_group(tp_group, "tp_group");
    InspectTensorCall call{tensor_named(tensor_name, hooks_->kind()),
                           tensor ? &*tensor : nullptr,
                           first ? &*first : nullptr,
                           second ? &*second : nullptr,
                           quantizer.get(),
                           {group.get(), tp_size}};
    // As for a copy from modify_tensor, the scale is read from the copy.
    call.rowwise_modified = cast_elsewhere && first;
    call.columnwise_modified = cast_elsewhere && second;
    const WithoutGil no_gil;
    listener->inspect_tensor(*hooks_, *plan_, call);
  }

  // Shows the scores of scaled_dot_product_attention(query, key, ...), which are not stored.
  void inspect_scores(const at::Tensor& query, const at::Tensor& key,
                      const std::optional<at::Tensor>& attn_mask, bool is_causal, double scale) {
    const hook_points::ListenerCall listener(plan());
    if (!listener || !plan_->inspects(tensor_named("scores", hooks_->kind()))) {
      return;
    }
    ops::AttentionScores scores{.query = in_four_dimensions(query),
                                .key = in_four_dimensions(key),
                                .is_causal = is_causal,
                                .scale = scale};
    if (attn_mask) {
      const bool allows = attn_mask->scalar_type() == at::kBool;
      (allows ? scores.allowed : scores.bias) = in_four_dimensions(*attn_mask);
    }
    InspectTensorCall call{TensorName::scores, nullptr, nullptr, nullptr, nullptr, {}};
    call.scores = &scores;
    const WithoutGil no_gil;
    listener->inspect_tensor(*hooks_, *plan_, call);
  }

  void inspect_tensor_postquantize(const std::string& gemm, const std::string& tensor_name,
                                   const py::object& tensor, bool rowwise,
                                   const py::object& tp_group, std::int64_t tp_size) {
    const hook_points::ListenerCall listener(plan());
    if (!listener || !inspect_tensor_postquantize_enabled(gemm, tensor_name)) {
      return;
    }
    const Operand operand = to_operand(tensor);
    const ProcessGroupPtr group = to_process_group(tp_group, "tp_group");
    const InspectPostquantizeCall call{
        gemm_named(gemm), tensor_named(tensor_name), operand, rowwise, {group.get(), tp_size}};
    const WithoutGil no_gil;
    listener->inspect_tensor_postquantize(*hooks_, *plan_, call);
  }

 private:
  // The plan of the newest forward; an empty one without a session.
  const RoutingPlan& plan() const {
    static const RoutingPlan none;
    return plan_ ? *plan_ : none;
  }

  std::unique_ptr<LayerHooks> hooks_;
  std::shared_ptr<const RoutingPlan> plan_;
};

}  // namespace

void bind_layer_calls(py::module_& module) {
  py::class_<WatchedLayer>(module, "WatchedLayer", "A layer that Python code watches itself.")
      .def(py::init<std::string, bool>(), py::arg("name"), py::arg("attention") = false)
      .def("begin_forward", &WatchedLayer::begin_forward, py::arg("under_recipe"))
      .def("sleeps", &WatchedLayer::sleeps, py::arg("under_recipe"))
      .def("fp8_gemm_enabled", &WatchedLayer::fp8_gemm_enabled, py::arg("gemm"))
      .def("modify_tensor_enabled", &WatchedLayer::modify_tensor_enabled, py::arg("gemm"),
           py::arg("tensor_name"))
      .def("inspect_tensor_enabled", &WatchedLayer::inspect_tensor_enabled, py::arg("tensor_name"))
      .def("inspect_tensor_postquantize_enabled",
           &WatchedLayer::inspect_tensor_postquantize_enabled, py::arg("gemm"),
           py::arg("tensor_name"))
      .def("modify_tensor", &WatchedLayer::modify_tensor, py::arg("gemm"), py::arg("tensor_name"),
           py::arg("tensor"), py::arg("default_quantizer") = py::none(),
           py::arg("dtype") = py::none(), py::arg("out") = py::none())
      .def("inspect_tensor", &WatchedLayer::inspect_tensor, py::arg("tensor_name"),
           py::arg("tensor"), py::arg("rowwise_quantized_tensor") = py::none(),
           py::arg("columnwise_quantized_tensor") = py::none(), py::arg("quantizer") = py::none(),
           py::arg("tp_group") = py::none(), py::arg("tp_size") = 1,
           py::arg("cast_elsewhere") = false)
      .def("inspect_scores", &WatchedLayer::inspect_scores, py::arg("query"), py::arg("key"),
           py::arg("attn_mask"), py::arg("is_causal"), py::arg("scale"))
      .def("inspect_tensor_postquantize", &WatchedLayer::inspect_tensor_postquantize,
           py::arg("gemm"), py::arg("tensor_name"), py::arg("tensor"), py::arg("rowwise") = true,
           py::arg("tp_group") = py::none(), py::arg("tp_size") = 1);
}

}  // namespace telens::python
