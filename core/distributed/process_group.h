// A process group, without including c10d (its header takes seconds to compile).
#pragma once

#include <memory>

namespace c10d {
class ProcessGroup;
}

namespace telens {

// Shares ownership of the intrusive pointer that it was made of.
using ProcessGroupPtr = std::shared_ptr<c10d::ProcessGroup>;

}  // namespace telens
