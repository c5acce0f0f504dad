#include "hooks/group_identity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <exception>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "hooks/reductions.h"

namespace telens {

std::string list_ranks(c10d::ProcessGroup& group) {
  for (const c10::Device device : group.getDeviceTypes()) {
    try {
      const auto options = group.getBackend(device.type())->getBackendOptions();
      if (options && !options->global_ranks_in_group.empty()) {
        return fmt::format("{}", fmt::join(options->global_ranks_in_group, ","));
      }
    } catch (const std::exception&) {  // a backend without options
    }
  }
  return "-";
}

std::string get_identity(c10d::ProcessGroup& group) {
  return fmt::format("{} {}", list_ranks(group), get_id(group));
}

}  // namespace telens
