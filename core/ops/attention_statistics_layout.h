// The sums of one read of an attention's scores that TensorSums (core/ops/statistics_layout.h) does
// not contain, and how two such results are merged. Plain data of 8-byte fields, as in that file.
// No LibTorch.
//
// A row is the set of scores that one query sees in one head: the argument of softmax, after scale,
// bias and mask. A row counts in exactly one category:
//   blind       it sees no key, for example padding; a bias of -Inf hides a key, as a mask does
//   nonfinite   a visible score is NaN or +Inf, or all are -Inf: its softmax is not defined
//   single      it sees one key, so it has nothing to choose
//   choosing    every other row; the sums below are over these rows
#pragma once

#include <cstdint>

namespace telens {

struct ScoreSums {
  std::int64_t blind = 0;
  std::int64_t nonfinite = 0;
  std::int64_t single = 0;
  std::int64_t choosing = 0;
  std::int64_t one_key = 0;    // one key has more than kOneKeyShare of the softmax
  std::int64_t first_key = 0;  // of these rows, that key is the first one that the query sees
  double entropy = 0;          // sum of the entropies, in nats
  double share = 0;  // sum of the entropies, each divided by the largest possible: 0 to 1 per row
};

inline constexpr double kOneKeyShare = 0.99;
inline constexpr std::int64_t kScoreSumsWords = sizeof(ScoreSums) / sizeof(std::int64_t);

constexpr void merge(ScoreSums& into, const ScoreSums& part) {
  into.blind += part.blind;
  into.nonfinite += part.nonfinite;
  into.single += part.single;
  into.choosing += part.choosing;
  into.one_key += part.one_key;
  into.first_key += part.first_key;
  into.entropy += part.entropy;
  into.share += part.share;
}

}  // namespace telens
