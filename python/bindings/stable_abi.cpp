#include "python/bindings/stable_abi.h"

#include <array>
#include <utility>

#include "core/base/error.h"

namespace telens::python {

namespace py = pybind11;

namespace {

// What conversions use of torch. Read once; never released, because they may run at exit.
struct Torch {
  py::object module = py::module_::import("torch");
  py::object tensor_type = module.attr("Tensor");
  py::object parameter_type = module.attr("nn").attr("Parameter");
  py::object dtype_type = module.attr("dtype");
  py::object get_pointer =
      module.attr("_C").attr("_aoti").attr("unsafe_alloc_void_ptr_from_tensor");
  py::object take_pointer =
      module.attr("_C").attr("_aoti").attr("alloc_tensor_by_stealing_from_void_ptr");
};

const Torch& torch() {
  static const Torch& loaded = *new Torch;
  return loaded;
}

constexpr std::array<std::pair<const char*, at::ScalarType>, 14> kDtypes{
    {{"uint8", at::ScalarType::Byte},
     {"int8", at::ScalarType::Char},
     {"int16", at::ScalarType::Short},
     {"int32", at::ScalarType::Int},
     {"int64", at::ScalarType::Long},
     {"float16", at::ScalarType::Half},
     {"float32", at::ScalarType::Float},
     {"float64", at::ScalarType::Double},
     {"complex64", at::ScalarType::ComplexFloat},
     {"complex128", at::ScalarType::ComplexDouble},
     {"bool", at::ScalarType::Bool},
     {"bfloat16", at::ScalarType::BFloat16},
     {"float8_e4m3fn", at::ScalarType::Float8_e4m3fn},
     {"float8_e5m2", at::ScalarType::Float8_e5m2}}};

using Dtypes = std::array<py::object, kDtypes.size()>;

const Dtypes& dtype_objects() {
  static const Dtypes& objects = *[] {
    auto* const made = new Dtypes;
    for (std::size_t i = 0; i < kDtypes.size(); ++i) {
      (*made)[i] = torch().module.attr(kDtypes[i].first);
    }
    return made;
  }();
  return objects;
}

}  // namespace

bool is_tensor(py::handle object) {
  return PyObject_IsInstance(object.ptr(), torch().tensor_type.ptr()) == 1;
}

at::Tensor to_tensor(py::handle object) {
  const py::object pointer = torch().get_pointer(object);
  void* const handle = PyCapsule_GetPointer(pointer.ptr(), nullptr);
  if (handle == nullptr) throw py::error_already_set();
  return at::Tensor::steal(static_cast<AtenTensorHandle>(handle));
}

py::object from_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return py::none();
  AtenTensorHandle share = nullptr;
  if (aoti_torch_new_tensor_handle(tensor.handle(), &share) != AOTI_TORCH_SUCCESS) {
    raise<InternalError>("a tensor could not be passed to Python");
  }
  const auto pointer = py::reinterpret_steal<py::object>(PyCapsule_New(share, nullptr, nullptr));
  return torch().take_pointer(pointer);
}

bool is_dtype(py::handle object) {
  if (PyObject_IsInstance(object.ptr(), torch().dtype_type.ptr()) != 1) return false;
  for (const py::object& each : dtype_objects()) {
    if (object.is(each)) return true;
  }
  return false;
}

at::ScalarType to_dtype(py::handle object) {
  const Dtypes& objects = dtype_objects();
  for (std::size_t i = 0; i < objects.size(); ++i) {
    if (object.is(objects[i])) return kDtypes[i].second;
  }
  raise<InternalError>("a dtype was not checked before its conversion");
}

py::object from_dtype(at::ScalarType dtype) {
  for (std::size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].second == dtype) return dtype_objects()[i];
  }
  raise<InternalError>("dtype {} has no object in Python", c10::toString(dtype));
}

}  // namespace telens::python

bool THPVariable_CheckExact(PyObject* object) {
  const auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  return type == telens::python::torch().tensor_type.ptr() ||
         type == telens::python::torch().parameter_type.ptr();
}
