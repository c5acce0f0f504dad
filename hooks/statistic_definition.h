// A statistic of one's own: an accumulator that the statistics engine treats like those it has.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "core/base/error.h"
#include "hooks/config/statistic_description.h"

namespace at {
class Tensor;
}

namespace telens {

// Its sums are a fixed number of FP64 words (StatisticDescription::words), so that micro-batches
// and ranks can be put together. Calls may come from several threads at once, under no_grad. They
// must change nothing and draw no random numbers. One that throws switches the statistic off for
// the session: this is recorded and warned about once, and training goes on.
class TELENS_EXPORT StatisticDefinition {
 public:
  virtual ~StatisticDefinition() = default;

  // The sums of one tensor in high precision, which has elements: as many values as there are
  // words, best on the tensor's device, where they stay until the step.
  virtual at::Tensor add(const at::Tensor& tensor) const = 0;

  // Makes `into` the sums of both parts. This one adds word by word.
  virtual void merge(std::span<double> into, std::span<const double> from) const;

  // The value that the sums of all micro-batches, and of a group's ranks, come to.
  virtual double finish(std::span<const double> sums) const = 0;
};

struct StatisticRegistration {
  config::StatisticDescription description;
  std::shared_ptr<const StatisticDefinition> definition;
};

// The statistics of one session.
class TELENS_EXPORT StatisticRegistry {
 public:
  // `is_builtin`: whether a name is that of a statistic that comes with TELens; by default none is.
  explicit StatisticRegistry(std::function<bool(std::string_view name)> is_builtin =
                                 [](std::string_view) { return false; });

  // A name that is taken, by a built-in statistic too, throws ConfigError naming both owners.
  void add(StatisticRegistration registration);

  // Their rows, which hold the definitions. Grows with every add().
  config::StatisticDescriptionsPtr descriptions() const { return descriptions_; }

 private:
  std::shared_ptr<config::StatisticDescriptions> descriptions_;
};

}  // namespace telens
