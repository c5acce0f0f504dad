// The features and statistics that a session knows: built-in ones, those that the program
// registered, and those of plugins.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "hooks/feature_registration.h"
#include "hooks/statistic_definition.h"

namespace telens {

// Adds a feature for all sessions that begin after it; for Python's register_feature and programs
// of one's own. A name or alias that is taken already throws UsageError naming both owners.
TELENS_EXPORT void register_feature(FeatureRegistration registration);

// Lets configurations of sessions that begin after it name a namespace that has no feature yet. A
// name of ours, or of another owner, throws UsageError naming the owner.
TELENS_EXPORT void register_namespace(const std::string& name, const std::string& owner);

// Adds a statistic for all sessions that begin after it. A name that is taken already throws
// UsageError naming both owners.
TELENS_EXPORT void register_statistic(StatisticRegistration registration);

// Forgets the statistics that `owner` registered (StatisticDescription::owner).
TELENS_EXPORT void unregister_statistics(const std::string& owner);

// Forgets the features (FeatureDescription::owner) and namespaces that `owner` registered; for
// tests and reloaded modules.
TELENS_EXPORT void unregister_features(const std::string& owner);

// The features and statistics of one session: a copy of the lists at its beginning, and its
// plugins.
class FeatureRegistry {
 public:
  // Those that come with TELens, and those that were registered.
  explicit FeatureRegistry(const BuiltinFeatures& builtin);

  // A name or alias that is taken already throws UsageError naming both owners.
  void add(FeatureRegistration registration);
  void add(StatisticRegistration registration) { statistics_.add(std::move(registration)); }

  const StatisticRegistry& statistics() const { return statistics_; }
  const config::Descriptions& descriptions() const { return descriptions_; }

  // Throws what the factory throws, with the feature's name and section in front.
  std::unique_ptr<Feature> make(const config::FeatureEntry& entry, FeatureServices& services) const;

 private:
  StatisticRegistry statistics_;
  config::Descriptions descriptions_;
  std::map<std::string, FeatureFactory> factories_;  // by qualified name
};

}  // namespace telens
