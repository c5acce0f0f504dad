// The attributes of parameters that fuse_wgrad_accumulation is about.
#pragma once

namespace telens::python {

// Lets the layers of the C++ core find them.
void find_main_grads_in_attributes();

}  // namespace telens::python
