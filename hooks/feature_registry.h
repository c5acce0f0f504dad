// The features and statistics that a session knows: built-in ones, registered ones, and ones from
// plugins.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "hooks/feature_registration.h"
#include "hooks/statistic_definition.h"

namespace telens {

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

}  // namespace telens
