// Tells the process groups of a run apart, in the same words on all of their ranks.
#pragma once

#include <string>

namespace c10d {
class ProcessGroup;
}

namespace telens {

// The ranks that a group is made of, as its backend was told; "-" where it was not. All ranks of a
// group are told the same.
std::string list_ranks(c10d::ProcessGroup& group);

// Ranks and name: groups that a larger one was split into may share a name.
std::string get_identity(c10d::ProcessGroup& group);

}  // namespace telens
