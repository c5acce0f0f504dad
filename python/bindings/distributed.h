// torch.distributed's process groups between Python and the C++ core, which holds them without
// knowing c10d's headers.
#pragma once

#include <pybind11/pybind11.h>

#include "core/distributed/process_group.h"

namespace telens::python {

// A torch.distributed.ProcessGroup or None. Shares ownership. Raises TypeError for anything else,
// by the name of the argument.
ProcessGroupPtr to_process_group(const pybind11::object& group, const char* argument = "group");
// The Python object of a group, None for a null one.
pybind11::object from_process_group(c10d::ProcessGroup* group);

}  // namespace telens::python
