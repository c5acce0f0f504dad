// The linear layers of a module: their names and saved state.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "core/modules/layer/linear_layer.h"

namespace telens {

class NamedLayers {
 public:
  // `kind`: used in messages about an unnamed module. If the name is empty, a debug session assigns
  // one, with a number that all layers of the module share.
  NamedLayers(std::string kind, std::string name);

  // Creates the next layer, "<name><suffix>". Copies of the result share the layer.
  LinearLayer add(const std::string& suffix);

  void set_name(const std::string& name);

  // Returns the module's name or kind.
  const std::string& name() const { return name_.empty() ? kind_ : name_; }

  // Returns the extra states of all layers as one byte string; empty before the first forward under
  // delayed scaling.
  at::Tensor extra_state() const;
  // Restores extra_state(). Empty bytes reset the states. Throws UsageError if the bytes hold the
  // states of a different number of layers. `key`: the checkpoint's entry, for messages.
  void set_extra_state(const at::Tensor& bytes, const std::string& key);

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
