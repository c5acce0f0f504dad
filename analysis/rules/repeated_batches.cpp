#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "analysis/rules/rules.h"
#include "analysis/rules/scalar_reads.h"

namespace telens::analysis {
namespace {

constexpr std::string_view kRepeated = "repeated_batches%";

// Percent of the iterations between two reads. If each batch is returned n times in a row, the
// share is 1 - 1/n, so 50 for n = 2. Ten iterations contain 4 or 5 such repetitions.
constexpr double kMinRepeated = 40;
// A training in which all batches are equal overfits one batch on purpose.
constexpr double kOneBatch = 100;
constexpr std::size_t kMinRepeatedReads = 2;

// Returns true if batches repeat in most reads, and change in between.
bool is_repeating(const std::vector<Point>& reads) {
  const auto repeated =
      std::ranges::count_if(reads, [](const Point& read) { return read.value >= kMinRepeated; });
  const bool is_one_batch =
      std::ranges::all_of(reads, [](const Point& read) { return read.value >= kOneBatch; });
  return !is_one_batch && reads.size() >= kMinRepeatedReads &&
         2 * repeated > static_cast<std::ptrdiff_t>(reads.size());
}

std::vector<Finding> find_repeated_batches(const Facts& facts) {
  for (const Scalars* shares : scalars_named(facts, kRepeated)) {
    const std::vector<Point>& reads = shares->points;
    if (!is_repeating(reads)) continue;
    const auto first =
        std::ranges::find_if(reads, [](const Point& read) { return read.value >= kMinRepeated; });
    // A read describes the iterations since the previous read.
    const std::int64_t begin =
        first == reads.begin() ? facts.first_iteration() : std::prev(first)->iteration;
    return {{.cause = "repeated_batches",
             .place = {.rank = shares->rank},
             .first = begin,
             .last = facts.last_iteration(),
             .confidence = kProbable,
             .summary = fmt::format(
                 "{:.3g} % of the batches up to iteration {} have the same token ids as the batch "
                 "before",
                 first->value, first->iteration),
             .evidence = {{std::string(kRepeated),
                           {.rank = shares->rank},
                           first->iteration,
                           first->value,
                           ""}}}};
  }
  return {};
}

}  // namespace

Rule repeated_batches() {
  return {.cause = "repeated_batches",
          .title = "batches that repeat",
          .doc =
              "In most reads, at least 40 % of the iterations have exactly the token ids of the "
              "previous iteration, as if each batch was returned twice or more. Batches that "
              "return after an epoch are not reported, and neither is a training in which all "
              "batches are equal. Visible in the first 20 iterations.",
          .stage = Stage::setup,
          .scalars = {kRepeated},
          .needs_optimizer = true,
          .recorded_by = "telens.watch, of a model with embeddings",
          .alternatives = "Several optimizer steps for each batch on purpose, as in PPO or GRPO.",
          .next_step =
              "print the indices that each worker of the data loader reads; seed NumPy and random "
              "per worker (worker_init_fn), and split an iterable dataset by worker and rank",
          .find = find_repeated_batches};
}

}  // namespace telens::analysis
