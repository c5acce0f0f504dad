#include "python/bindings/process_group.h"

#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "python/bindings/fields.h"

namespace telens::python {

namespace py = pybind11;

ProcessGroupPtr to_process_group(const py::object& group, const char* argument) {
  if (group.is_none()) {
    return nullptr;
  }
  try {
    auto counted = group.cast<c10::intrusive_ptr<c10d::ProcessGroup>>();
    c10d::ProcessGroup* plain = counted.get();
    return ProcessGroupPtr(plain, [counted](c10d::ProcessGroup*) mutable { counted.reset(); });
  } catch (const py::cast_error&) {
    raise_wrong_type(argument, "a torch.distributed.ProcessGroup or None", group);
  }
}

py::object from_process_group(c10d::ProcessGroup* group) {
  if (group == nullptr) {
    return py::none();
  }
  return py::cast(c10::intrusive_ptr<c10d::ProcessGroup>::unsafe_reclaim_from_nonowning(group));
}

}  // namespace telens::python
