// The sums of one tensor in one iteration, on the host: micro-batches together, then ranks.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "features/engine/defined_statistics.h"
#include "features/statistics/requests.h"
#include "features/statistics/scale_sums.h"

namespace telens::features {

using AnySums = std::variant<TensorSums, CastSums, BlockRanges, ScaleSums, DefinedSums>;

// What the tensor itself was does not depend on the recipe; sums of casts and blocks belong to
// those micro-batches in which somebody asked for them.
class Totals {
 public:
  // The name says what the sums are of, in the same words on every rank.
  struct Named {
    std::string name;
    AnySums sums;
  };

  Totals() { all_.push_back({"tensor", TensorSums{}}); }

  void add(const RequestSet& set, const TensorResults& part);
  // Of the cast whose scale the set asks about.
  void add(const RequestSet& set, const ScaleSums& part);
  // Of a statistic that somebody defined.
  void add(const std::string& statistic, const DefinedSums& part);

  bool empty() const { return tensor().numel == 0; }
  const TensorSums& tensor() const { return std::get<TensorSums>(all_.front().sums); }

  // The value of a request of a set that was added; nullopt where what was read says nothing of it.
  std::optional<double> value(const StatisticRequest& request, const RequestSet& set) const;

  std::vector<Named>& all() { return all_; }

 private:
  template <typename Sums>
  Sums& find_or_add(std::string name);
  const AnySums& find(const std::string& name) const;

  std::vector<Named> all_;
};

}  // namespace telens::features
