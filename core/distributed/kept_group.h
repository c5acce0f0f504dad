// Stores a process group in an autograd node's saved data.
#pragma once

#include <ATen/core/ivalue.h>

#include <utility>

#include "core/distributed/process_group.h"

namespace telens {

class GroupHolder final : public torch::CustomClassHolder {
 public:
  static c10::IValue keep(ProcessGroupPtr group) {
    return c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(std::move(group)));
  }
  static ProcessGroupPtr of(const c10::IValue& kept) {
    return static_cast<const GroupHolder&>(*kept.toCapsule()).group_;
  }

  explicit GroupHolder(ProcessGroupPtr group) : group_(std::move(group)) {}

 private:
  ProcessGroupPtr group_;
};

}  // namespace telens
