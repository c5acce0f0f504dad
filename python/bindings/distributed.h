// Converts torch.distributed's process groups between Python and the C++ core, which does not
// include c10d's headers.
#pragma once

#include <pybind11/pybind11.h>

#include "core/distributed/process_group.h"

namespace telens::python {

// Converts a torch.distributed.ProcessGroup or None; shares ownership. Raises TypeError that names
// the argument for anything else.
ProcessGroupPtr to_process_group(const pybind11::object& group, const char* argument = "group");
// Returns the Python object of a group; None for null.
pybind11::object from_process_group(c10d::ProcessGroup* group);

}  // namespace telens::python
