#include "hooks/feature_registry.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace telens {
namespace {

// ---- the parts that a session is built from

std::optional<SessionParts>& parts() {
  static std::optional<SessionParts> instance;
  return instance;
}

// ---- registered features and statistics

struct Registered {
  std::mutex mutex;
  std::vector<FeatureRegistration> features;
  std::vector<StatisticRegistration> statistics;
  std::multimap<std::string, std::string> namespaces;  // keyed by owner
};

Registered& registered() {
  static Registered instance;
  return instance;
}

std::vector<FeatureRegistration> registered_features() {
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  return all.features;
}

std::vector<StatisticRegistration> registered_statistics() {
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  return all.statistics;
}

std::vector<std::string> registered_namespaces() {
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  std::vector<std::string> names;
  for (const auto& [owner, name] : all.namespaces) names.push_back(name);
  return names;
}

config::Descriptions builtin_names() {
  config::Descriptions descriptions;
  for (FeatureRegistration& each : default_parts().builtin.features(nullptr)) {
    descriptions.add(std::move(each.description));
  }
  return descriptions;
}

}  // namespace

// ---- the parts that a session is built from

void set_default_parts(SessionParts given) { parts() = std::move(given); }

const SessionParts& default_parts() {
  if (!parts()) {
    raise<UsageError>(
        "debug.initialize: this program has neither features nor a run file; link libtelens.so, or "
        "hand the parts of the session to initialize()");
  }
  return *parts();
}

// ---- registered features and statistics

void register_feature(FeatureRegistration registration) {
  FeatureRegistry(default_parts().builtin).add(registration);  // throws if the name is taken
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  all.features.push_back(std::move(registration));
}

void register_namespace(const std::string& name, const std::string& owner) {
  const config::Descriptions builtin = builtin_names();
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  const auto other = std::ranges::find_if(
      all.namespaces, [&](const auto& each) { return each.second == name && each.first != owner; });
  const bool is_builtin =
      builtin.has_namespace(name) || builtin.find(config::kBaseNamespace, name) != nullptr;
  if (is_builtin || other != all.namespaces.end()) {
    raise<UsageError>(
        "the namespace {} of {} cannot be registered: {} has that name already; choose another",
        name, owner, is_builtin ? "telens" : other->first);
  }
  all.namespaces.emplace(owner, name);
}

void register_statistic(StatisticRegistration registration) {
  FeatureRegistry(default_parts().builtin).add(registration);  // throws if the name is taken
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  all.statistics.push_back(std::move(registration));
}

void unregister_statistics(const std::string& owner) {
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.statistics, [&](const auto& each) { return each.description.owner == owner; });
}

void unregister_features(const std::string& owner) {
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.features, [&](const auto& each) { return each.description.owner == owner; });
  all.namespaces.erase(owner);
}

FeatureRegistry::FeatureRegistry(const BuiltinFeatures& builtin)
    : statistics_(builtin.has_statistic) {
  for (FeatureRegistration& each : builtin.features(statistics_.descriptions())) {
    add(std::move(each));
  }
  for (StatisticRegistration& each : registered_statistics()) add(std::move(each));
  for (FeatureRegistration& each : registered_features()) add(std::move(each));
  for (const std::string& each : registered_namespaces()) descriptions_.add_namespace(each);
}

void FeatureRegistry::add(FeatureRegistration registration) {
  const std::string name = config::qualified_name(registration.description);
  descriptions_.add(std::move(registration.description));
  factories_.emplace(name, std::move(registration.make));
}

std::unique_ptr<Observer> FeatureRegistry::make(const config::FeatureEntry& entry,
                                                FeatureServices& services) const {
  const FeatureFactory& factory = factories_.at(config::qualified_name(*entry.description));
  try {
    return factory(entry, services);
  } catch (const UsageError& error) {
    // Errors that name a place in the text itself are more precise.
    const std::string source = entry.location.source ? *entry.location.source : "config";
    if (std::string_view(error.what()).starts_with(source + ":")) throw;
    raise<ConfigError>("{}: section '{}', feature '{}': {}", config::to_string(entry.location),
                       entry.section, entry.written_name, error.what());
  }
}

}  // namespace telens
