// Identifies the process groups of a run, with the same text on all of their ranks.
#pragma once

#include <string>

namespace c10d {
class ProcessGroup;
}

namespace telens {

// Lists the ranks of a group, as its backend was given them; "-" if it was not given any. All ranks
// of a group have been given the same list.
std::string list_ranks(c10d::ProcessGroup& group);

// Combines ranks and name, because groups split from a larger one may share a name.
std::string get_identity(c10d::ProcessGroup& group);

}  // namespace telens
