#include "python/bindings/statistics.h"

#include <ATen/ops/empty.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "hooks/feature_registry.h"
#include "python/bindings/gil.h"
#include "python/bindings/gil_object.h"
#include "python/bindings/interruptions.h"
#include "python/bindings/module.h"

namespace telens::python {

namespace py = pybind11;

namespace {

std::vector<double> get_values(const py::object& sums) {
  const auto tensor = sums.cast<at::Tensor>().contiguous();
  const auto* data = tensor.const_data_ptr<double>();
  return {data, data + tensor.numel()};
}

// FP64 values of a Python class' own.
at::Tensor get_tensor(std::span<const double> sums) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(sums.size())}, at::kDouble);
  std::ranges::copy(sums, tensor.mutable_data_ptr<double>());
  return tensor;
}

// Adapts a Python class to the C++ interface. It calls a
// telens.debug.statistic_caller.StatisticCaller, which converts the results to tensors. The engine
// calls it from autograd's threads and from step(), without the GIL and without a lock that a
// thread with the GIL might wait for.
class PythonStatistic final : public StatisticDefinition {
 public:
  PythonStatistic(py::object caller, bool merges)
      : caller_(share(std::move(caller))), merges_(merges) {}

  at::Tensor add(const at::Tensor& tensor) const override {
    const WithGil gil;
    return letting_interruptions_pass(
        [&] { return caller_->attr("add")(tensor).cast<at::Tensor>(); });
  }

  void merge(std::span<double> into, std::span<const double> from) const override {
    if (!merges_) {
      StatisticDefinition::merge(into, from);
      return;
    }
    const WithGil gil;
    const std::vector<double> merged = letting_interruptions_pass(
        [&] { return get_values(caller_->attr("merge")(get_tensor(into), get_tensor(from))); });
    std::ranges::copy(merged, into.begin());  // the caller has counted them
  }

  double finish(std::span<const double> sums) const override {
    const WithGil gil;
    return letting_interruptions_pass(
        [&] { return caller_->attr("finish")(get_tensor(sums)).cast<double>(); });
  }

 private:
  GilObject caller_;
  const bool merges_;
};

}  // namespace

class PythonReading::Requests {
 public:
  explicit Requests(StatisticsEngine& engine) : engine_(engine) {}

  const StatisticsRequest& of(const std::vector<std::string>& names) {
    StatisticsRequestPtr& known = known_[names];
    if (!known) known = engine_.prepare(names);
    return *known;
  }

 private:
  StatisticsEngine& engine_;
  std::map<std::vector<std::string>, StatisticsRequestPtr> known_;
};

struct PythonReading::Handle {
  TensorReading* reading;  // nullptr after the call
  Requests* requests;

  std::optional<std::string> want(const py::args& names) const {
    if (reading == nullptr) {
      raise<UsageError>(
          "statistics.want: the call of inspect_tensor is over; ask for statistics before it "
          "returns");
    }
    if (names.empty()) raise<UsageError>("statistics.want: name at least one statistic");
    return reading->want(requests->of(names.cast<std::vector<std::string>>()));
  }
};

PythonReading::PythonReading(TensorReading& reading, Requests& requests)
    : handle_(std::make_shared<Handle>(Handle{&reading, &requests})), object_(py::cast(handle_)) {}

PythonReading::~PythonReading() { handle_->reading = nullptr; }

std::shared_ptr<PythonReading::Requests> PythonReading::make_requests(StatisticsEngine& engine) {
  return std::make_shared<Requests>(engine);
}

void bind_statistics(py::module_& module) {
  using Handle = PythonReading::Handle;
  py::class_<Handle, std::shared_ptr<Handle>>(
      module, "StatisticsOfTensor",
      "The interface of the statistics engine for a feature class inside inspect_tensor.")
      .def("want", &Handle::want,
           "want(*names: str) -> str | None\n\n"
           "Has these statistics of the tensor recorded at the step, as LogTensorStats and "
           "LogFp8TensorStats record them: from the one read that all features share, over all "
           "micro-batches and ranks. Returns which of them have no meaning for this tensor and "
           "why; None if all are read. Raises telens.UsageError with the nearest name for an "
           "unknown statistic.");
  module.def(
      "register_statistic",
      [](std::string name, std::string doc, std::size_t words, std::string owner, py::object caller,
         bool merges) {
        register_statistic({{std::move(name), std::move(doc), words, std::move(owner)},
                            std::make_shared<PythonStatistic>(std::move(caller), merges)});
      },
      py::arg("name"), py::arg("doc"), py::arg("words"), py::arg("owner"), py::arg("caller"),
      py::arg("merges"));
  module.def("unregister_statistics", &unregister_statistics, py::arg("owner"));
}

}  // namespace telens::python
