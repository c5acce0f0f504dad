#include "core/stable_abi/operators.h"

#include <map>

namespace telens::ops {

Kernels& kernels_of(std::string_view name) {
  // Never destroyed: operators may run while the process exits.
  static auto& all = *new std::map<std::string, Kernels, std::less<>>;
  const auto found = all.find(name);
  return found != all.end() ? found->second : all[std::string(name)];
}

void raise_no_kernel(const char* name) {
  raise<UsageError>("{}: this build of TELens has no kernel for it", name);
}

void KernelLibrary::add(const char* name, Kernels::Function kernel) {
  Kernels& kernels = kernels_of("telens::" + std::string(name));
  if (key_ == Key::CPU) kernels.cpu = kernel;
  if (key_ == Key::CompositeExplicitAutograd) kernels.every_device = kernel;
}

}  // namespace telens::ops
