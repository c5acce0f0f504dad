#include "core/modules/module/named_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/quantization/extra_state.h"

namespace telens {
namespace {

// Returns the GEMM's name in messages: "fc1" for the suffix ".fc1".
std::string_view gemm_name(std::string_view suffix) {
  return suffix.substr(std::min(suffix.find_first_not_of('.'), suffix.size()));
}

}  // namespace

NamedLayers::NamedLayers(std::string kind, std::string name)
    : kind_(std::move(kind)), name_(std::move(name)) {}

LinearLayer NamedLayers::add(const std::string& suffix) {
  LinearLayer operation(name_.empty() ? std::string() : name_ + suffix, kind_ + suffix);
  operation.join(windows_);
  LinearLayer first = layers_.empty() ? operation : layers_.front().operation;
  operation.hooks().share_automatic_name(first.hooks(), suffix);
  layers_.push_back({operation, suffix});
  return operation;
}

void NamedLayers::set_name(const std::string& name) {
  name_ = name;
  for (Layer& layer : layers_) {
    layer.operation.hooks().set_name(name.empty() ? std::string() : name + layer.suffix);
  }
}

at::Tensor NamedLayers::extra_state() const {
  std::vector<at::Tensor> parts;
  for (const Layer& layer : layers_) {
    parts.push_back(layer.operation.quantization().extra_state());
  }
  return join_bytes(parts);
}

void NamedLayers::set_extra_state(const at::Tensor& bytes, const std::string& key) {
  std::vector<at::Tensor> parts = split_bytes(bytes, key);
  if (parts.empty()) parts.assign(layers_.size(), bytes);
  if (parts.size() != layers_.size()) {
    raise<UsageError>(
        "{}: {} holds the states of {} layer{}; expected {}, from {} to {}: the entry belongs to a "
        "different module",
        name(), key, parts.size(), parts.size() == 1 ? "" : "s", layers_.size(),
        layers_.front().suffix, layers_.back().suffix);
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    layers_[i].operation.quantization().set_extra_state(
        parts[i], fmt::format("{}, GEMM {}", key, gemm_name(layers_[i].suffix)));
  }
}

}  // namespace telens
