// The linear layers inside one module: what they are called, and the state that they save.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "core/modules/layer/linear_layer.h"

namespace telens {

class NamedLayers {
 public:
  // `kind`: what the module is, for messages where it has no name. An empty name is none: a debug
  // session then gives one, whose number all layers of the module share.
  NamedLayers(std::string kind, std::string name);

  // The module's next layer, "<name><suffix>". Copies of the result are the same layer.
  LinearLayer add(const std::string& suffix);

  void set_name(const std::string& name);

  // The name of the module, or what it is.
  const std::string& name() const { return name_.empty() ? kind_ : name_; }

  // The extra states of all layers as one string of bytes. Restoring throws UsageError on bytes of
  // another number of layers; empty ones are those of a module that has no state yet.
  at::Tensor extra_state() const;
  void set_extra_state(const at::Tensor& bytes);

 private:
  struct Layer {
    LinearLayer operation;
    std::string suffix;
  };

  std::string kind_;
  std::string name_;
  std::shared_ptr<ModuleWindows> windows_ = std::make_shared<ModuleWindows>();
  std::vector<Layer> layers_;
};

}  // namespace telens
