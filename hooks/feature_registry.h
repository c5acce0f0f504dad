// The features and statistics that a session knows: built-in ones, registered ones, and ones from
// plugins; and the default parts of sessions. No LibTorch.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "hooks/config/statistic_description.h"
#include "hooks/observer.h"
#include "hooks/sink.h"
#include "hooks/statistic_definition.h"
#include "hooks/statistics_engine.h"

namespace telens {

// A row of the list of features: its description and its factory.
struct FeatureRegistration {
  config::FeatureDescription description;
  FeatureFactory make;
};

// The features built into TELens. `features` receives the statistics that configurations may name
// in addition to built-in ones; null if there are none.
struct BuiltinFeatures {
  std::function<std::vector<FeatureRegistration>(const config::StatisticDescriptionsPtr&)> features;
  std::function<bool(std::string_view name)> has_statistic;
};

// Adds a feature for all sessions that begin later; for Python's register_feature and for programs.
// Throws UsageError naming both owners if a name or alias is already taken.
TELENS_EXPORT void register_feature(FeatureRegistration registration);

// Lets configurations of later sessions use a namespace before it has a feature. Throws UsageError
// naming the owner if TELens or another owner has the name.
TELENS_EXPORT void register_namespace(const std::string& name, const std::string& owner);

// Adds a statistic for all sessions that begin later. Throws UsageError naming both owners if the
// name is already taken.
TELENS_EXPORT void register_statistic(StatisticRegistration registration);

// Removes the statistics that `owner` registered (StatisticDescription::owner).
TELENS_EXPORT void unregister_statistics(const std::string& owner);

// Removes the features (FeatureDescription::owner) and namespaces that `owner` registered; for
// tests and reloaded modules.
TELENS_EXPORT void unregister_features(const std::string& owner);

// A session's features and statistics: a copy of the lists when the session begins, and its
// plugins.
class FeatureRegistry {
 public:
  // Contains the built-in features and the registered ones.
  explicit FeatureRegistry(const BuiltinFeatures& builtin);

  // Throws UsageError naming both owners if a name or alias is already taken.
  void add(FeatureRegistration registration);
  void add(StatisticRegistration registration) { statistics_.add(std::move(registration)); }

  const StatisticRegistry& statistics() const { return statistics_; }
  const config::Descriptions& descriptions() const { return descriptions_; }

  // Throws the factory's exception, with the feature's name and section prepended.
  std::unique_ptr<Observer> make(const config::FeatureEntry& entry,
                                 FeatureServices& services) const;

 private:
  StatisticRegistry statistics_;
  config::Descriptions descriptions_;
  std::map<std::string, FeatureFactory> factories_;  // keyed by qualified name
};

// Collects the features and statistics of a plugin.
class TELENS_EXPORT PluginRegistrar {
 public:
  PluginRegistrar(FeatureRegistry& registry, std::string path)
      : registry_(registry), path_(std::move(path)) {}

  // Throws ConfigError naming both owners if the name is already taken.
  void add(FeatureRegistration registration);
  void add(StatisticRegistration registration);

 private:
  FeatureRegistry& registry_;
  std::string path_;
};

// The injected parts of a session: its features, the engine that computes statistics, and the sink
// that records the run.
struct SessionParts {
  BuiltinFeatures builtin;
  // The table and the registry outlive the engine.
  std::function<std::unique_ptr<StatisticsEngine>(
      SeriesTable& series, const StatisticRegistry& defined, OnStatisticFailure on_failure)>
      make_engine;
  std::function<std::unique_ptr<Sink>()> make_run_file;
};

// Sets the default parts of sessions. features/builtin_features.cpp sets them when libtelens.so is
// loaded; a program that links only hooks has none.
TELENS_EXPORT void set_default_parts(SessionParts parts);
// Throws UsageError if none are set.
TELENS_EXPORT const SessionParts& default_parts();

}  // namespace telens
