#include "core/modules/attention/score_dropout.h"

#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty.h>

#include "core/ops/keyed_dropout.h"

namespace telens {

ScoreDropout ScoreDropout::seeded(double probability) {
  ScoreDropout dropout;
  dropout.probability_ = probability;
  if (probability != 0) {
    dropout.seed_ = at::empty({1}, at::kLong).random_().item<std::int64_t>();
  }
  return dropout;
}

ScoreDropout ScoreDropout::drawn(const ScoreShape& shape, const at::Tensor& query,
                                 double probability) {
  ScoreDropout dropout;
  dropout.probability_ = probability;
  if (probability != 0) {
    const at::Tensor like = at::empty({shape.batch, shape.heads, shape.queries, shape.keys},
                                      query.options().dtype(at::kFloat));
    dropout.choices_ = at::bernoulli(like, 1 - probability).to(at::kBool);
  }
  return dropout;
}

void ScoreDropout::apply(const at::Tensor& weights, const ScoreBlock& block) const {
  if (probability_ == 0) return;
  if (choices_.defined()) {
    weights.mul_(block.of_scores(choices_));
    if (probability_ != 1) weights.div_(1 - probability_);  // all dropped if 1
    return;
  }
  ops::keyed_dropout_(weights, {.seed = seed_,
                                .probability = probability_,
                                .sample = block.sample,
                                .head = block.head(),
                                .query = block.query,
                                .key = block.key});
}

}  // namespace telens
