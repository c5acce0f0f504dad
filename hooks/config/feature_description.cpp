#include "hooks/config/feature_description.h"

#include <algorithm>

#include "core/base/error.h"

namespace telens::config {
namespace {

bool is_called(const FeatureDescription& description, std::string_view name) {
  return description.name == name ||
         std::ranges::find(description.aliases, name) != description.aliases.end();
}

}  // namespace

std::string_view get_name(ParameterType type) {
  switch (type) {
    case ParameterType::boolean:
      return "true or false";
    case ParameterType::integer:
      return "an integer";
    case ParameterType::number:
      return "a number";
    case ParameterType::string:
      return "a string";
    case ParameterType::list_of_strings:
      return "a list of strings";
    case ParameterType::list:
      return "a list";
    case ParameterType::map:
      return "a mapping";
    case ParameterType::any:
      break;
  }
  return "any value";
}

std::vector<std::string> nothing_recorded(const Selection&) { return {}; }

std::string qualified_name(const FeatureDescription& description) {
  return description.feature_namespace + '.' + description.name;
}

std::string describe_attached(const FeatureDescription& description) {
  if (!description.attached.empty()) return description.attached;
  if (description.opaque) return "unknown";
  return description.modifies ? kNeedsFp8Modules : "yes";
}

std::vector<std::string> all_tensor_names() {
  std::vector<std::string> names;
  for (const TensorName tensor : kLinearTensors) names.emplace_back(get_name(tensor));
  return names;
}

std::vector<std::string> with_attention(std::vector<std::string> names, bool scores) {
  for (const TensorName tensor : kAttentionTensors) {
    if (scores || tensor != TensorName::scores) names.emplace_back(get_name(tensor));
  }
  return names;
}

std::vector<std::string> gemm_input_names() {
  std::vector<std::string> names;
  for (const TensorName tensor : kAllTensors) {
    if (is_gemm_input(tensor)) names.emplace_back(get_name(tensor));
  }
  return names;
}

void Descriptions::add(FeatureDescription description) {
  std::vector<std::string> names = description.aliases;
  names.push_back(description.name);
  for (const std::string& name : names) {
    if (const auto other = find(description.feature_namespace, name)) {
      raise<ConfigError>(
          "the feature {}.{} of {} cannot be registered: {} has registered that name already; "
          "rename one of the two",
          description.feature_namespace, name, description.owner, other->owner);
    }
  }
  namespaces_.insert(description.feature_namespace);
  all_.push_back(std::make_shared<const FeatureDescription>(std::move(description)));
}

FeatureDescriptionPtr Descriptions::find(std::string_view feature_namespace,
                                         std::string_view name) const {
  const auto found = std::ranges::find_if(all_, [&](const FeatureDescriptionPtr& description) {
    return description->feature_namespace == feature_namespace && is_called(*description, name);
  });
  return found == all_.end() ? nullptr : *found;
}

std::vector<FeatureDescriptionPtr> Descriptions::find_all(std::string_view name) const {
  std::vector<FeatureDescriptionPtr> found;
  for (const FeatureDescriptionPtr& description : all_) {
    const bool qualified = name.starts_with(description->feature_namespace + '.');
    const std::string_view bare =
        qualified ? name.substr(description->feature_namespace.size() + 1) : name;
    if (is_called(*description, bare)) found.push_back(description);
  }
  return found;
}

std::vector<std::string> Descriptions::names(std::string_view feature_namespace) const {
  std::vector<std::string> names;
  for (const FeatureDescriptionPtr& description : all_) {
    if (description->feature_namespace != feature_namespace) continue;
    names.push_back(description->name);
    names.insert(names.end(), description->aliases.begin(), description->aliases.end());
  }
  return names;
}

}  // namespace telens::config
