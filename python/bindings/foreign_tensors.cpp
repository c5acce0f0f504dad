#include "python/bindings/foreign_tensors.h"

#include <ATen/DLConvertor.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/error.h"
#include "python/bindings/module.h"

namespace telens::python {

namespace py = pybind11;

namespace {

constexpr const char* kTableAttribute = "__dlpack_c_exchange_api__";
constexpr const char* kTableCapsule = "dlpack_exchange_api";

void check_exchange(int status) {
  if (status != 0) throw py::error_already_set();
}

bool is_same_dtype(const DLDataType& a, const DLDataType& b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

}  // namespace

ForeignTensors::ForeignTensors(const py::object& tensor_class) {
  const py::object capsule = py::getattr(tensor_class, kTableAttribute, py::none());
  const auto name = py::str(tensor_class).cast<std::string>();
  if (!PyCapsule_IsValid(capsule.ptr(), kTableCapsule)) {
    raise<UsageError>("{} has no {}; install a version of its framework that has", name,
                      kTableAttribute);
  }
  table_ =
      static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule.ptr(), kTableCapsule));
  const std::uint32_t major = table_->header.version.major;
  if (major != DLPACK_MAJOR_VERSION) {
    raise<UsageError>("{} speaks DLPack {}, and this torch DLPack {}; install versions that agree",
                      name, major, DLPACK_MAJOR_VERSION);
  }
}

at::Tensor ForeignTensors::view(py::handle tensor) const {
  DLManagedTensorVersioned* managed = nullptr;
  check_exchange(table_->managed_tensor_from_py_object_no_sync(tensor.ptr(), &managed));
  return at::fromDLPackVersioned(managed);
}

py::object ForeignTensors::wrap(const at::Tensor& tensor) const {
  void* object = nullptr;
  DLManagedTensorVersioned* managed = at::toDLPackVersioned(tensor.detach());
  check_exchange(table_->managed_tensor_to_py_object_no_sync(managed, &object));
  return py::reinterpret_steal<py::object>(static_cast<PyObject*>(object));
}

bool ForeignTensors::is_view_of(const at::Tensor& view, py::handle tensor) const {
  if (table_->dltensor_from_py_object_no_sync == nullptr) return false;
  DLTensor now;
  check_exchange(table_->dltensor_from_py_object_no_sync(tensor.ptr(), &now));
  const at::IntArrayRef sizes(now.shape, now.ndim);
  return static_cast<const char*>(now.data) + now.byte_offset == view.const_data_ptr() &&
         view.sizes() == sizes && is_same_dtype(now.dtype, at::getDLDataType(view)) &&
         at::dlDeviceToTorchDevice(now.device.device_type, now.device.device_id) == view.device();
}

std::optional<c10::StreamGuard> ForeignTensors::follow_stream(const at::Tensor& view) const {
  const at::Device device = view.device();
  if (device.is_cpu()) return std::nullopt;
  void* stream = nullptr;
  const DLDevice known = at::torchDeviceToDLDevice(device);
  check_exchange(table_->current_work_stream(known.device_type, known.device_id, &stream));
  // LibTorch takes the handle of a stream that it did not make for the stream's number.
  const auto number = static_cast<c10::StreamId>(reinterpret_cast<std::intptr_t>(stream));
  return std::optional<c10::StreamGuard>(std::in_place,
                                         c10::Stream(c10::Stream::UNSAFE, device, number));
}

void bind_foreign_tensors(py::module_& module) {
  py::class_<ForeignTensors, std::shared_ptr<ForeignTensors>>(
      module, "ForeignTensors", "Tensors of another framework, over DLPack without a copy.")
      .def(py::init<const py::object&>(), py::arg("tensor_class"))
      .def("view",
           [](const ForeignTensors& tensors, py::handle from) { return tensors.view(from); })
      .def("wrap", [](const ForeignTensors& tensors, const at::Tensor& from) {
        return tensors.wrap(from.contiguous());
      });
}

}  // namespace telens::python
