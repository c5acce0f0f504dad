// A group among the things that an autograd node saves.
#pragma once

#include <ATen/core/ivalue.h>

#include <utility>

#include "core/distributed/process_group.h"

namespace telens {

class KeptGroup final : public torch::CustomClassHolder {
 public:
  static c10::IValue keep(ProcessGroupPtr group) {
    return c10::IValue::make_capsule(c10::make_intrusive<KeptGroup>(std::move(group)));
  }
  static ProcessGroupPtr of(const c10::IValue& kept) {
    return static_cast<const KeptGroup&>(*kept.toCapsule()).group_;
  }

  explicit KeptGroup(ProcessGroupPtr group) : group_(std::move(group)) {}

 private:
  ProcessGroupPtr group_;
};

}  // namespace telens
