// A custom statistic: an accumulator that the statistics engine treats like the built-in ones.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "core/base/error.h"
#include "core/base/tensor_handle.h"
#include "hooks/config/statistic_description.h"

namespace telens {

// Its sums are a fixed number of FP64 words (StatisticDescription::words), so that micro-batches
// and ranks can be combined. Calls may come from several threads at once, under no_grad. They must
// not change anything or draw random numbers. A statistic that throws is disabled for the session:
// this is recorded and warned about once, and training continues.
class TELENS_EXPORT StatisticFunctions {
 public:
  virtual ~StatisticFunctions() = default;

  // Returns the sums of a non-empty tensor in high precision: one value per word, preferably on the
  // tensor's device, on which they stay until the step.
  virtual TensorHandle compute_sums(const TensorHandle& tensor) const = 0;

  // Merges the sums `from` into the sums `into`. The default adds word by word.
  virtual void merge(std::span<double> into, std::span<const double> from) const;

  // Computes the value from the sums over all micro-batches and over a group's ranks.
  virtual double finish(std::span<const double> sums) const = 0;
};

// A statistic that is computed with LibTorch.
class TELENS_EXPORT StatisticDefinition : public StatisticFunctions {
 public:
  // Like compute_sums().
  virtual at::Tensor add(const at::Tensor& tensor) const = 0;

  // Calls add(). Defined in hooks/libtorch/feature.cpp.
  TensorHandle compute_sums(const TensorHandle& tensor) const final;
};

struct StatisticRegistration {
  config::StatisticDescription description;
  std::shared_ptr<const StatisticFunctions> definition;
};

// A session's statistics.
class TELENS_EXPORT StatisticRegistry {
 public:
  // `is_builtin`: returns whether a name belongs to a statistic built into TELens; by default none
  // does.
  explicit StatisticRegistry(std::function<bool(std::string_view name)> is_builtin =
                                 [](std::string_view) { return false; });

  // Throws ConfigError naming both owners if the name is taken, also by a built-in statistic.
  void add(StatisticRegistration registration);

  // Their descriptions, which hold the definitions. Grows with every add().
  config::StatisticDescriptionsPtr descriptions() const { return descriptions_; }

 private:
  std::shared_ptr<config::StatisticDescriptions> descriptions_;
};

}  // namespace telens
