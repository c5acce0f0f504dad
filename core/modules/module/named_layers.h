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

  // The extra states of every layer as one byte string. Restoring throws UsageError for bytes of a
  // module with another number of layers; empty bytes mean that the state does not exist yet.
  // `key`: the checkpoint's entry, for messages.
  at::Tensor extra_state() const;
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
