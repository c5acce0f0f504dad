// Verdicts on collectives whose every number is known, rank by rank.
#include "features/collective_check/collective_verdict.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <limits>

#include "features/collective_check/seen_collectives.h"
#include "features/engine/tensor_digest.h"

namespace telens::features {
namespace {

using testing::HasSubstr;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// A collective of all ranks: what each sent, and what came out on each.
struct Collective {
  CollectiveKind kind;
  std::vector<at::Tensor> sent;
  std::vector<at::Tensor> results;  // undefined: it did not end on that rank
};

at::Tensor in_words(const Collective& collective, const SeenCollective& seen) {
  const at::Tensor& result = collective.results[static_cast<std::size_t>(seen.rank)];
  if (!result.defined()) return {};
  if (seen.kind != CollectiveKind::gather) {
    return collective_sums(result, seen.kind, result_range(seen).first, seen.numel);
  }
  std::vector<at::Tensor> digests;
  for (const at::Tensor& part : result.chunk(seen.ranks)) digests.push_back(digest_of(part));
  return at::stack(digests);
}

SeenCollective seen_by(const Collective& collective, std::size_t rank) {
  const at::Tensor& sent = collective.sent[rank];
  SeenCollective seen{.place = {"layer", "output"},
                      .kind = collective.kind,
                      .key = 17,
                      .shape = sent.numel(),
                      .title = "a collective",
                      .dtype = sent.scalar_type(),
                      .ranks = static_cast<std::int64_t>(collective.sent.size()),
                      .rank = static_cast<std::int64_t>(rank),
                      .numel = sent.numel(),
                      .sent = collective.kind == CollectiveKind::gather
                                  ? digest_of(sent)
                                  : collective_sums(sent, collective.kind, 0, sent.numel()),
                      .result = {}};
  seen.result = in_words(collective, seen);
  return seen;
}

// "": nothing is wrong.
std::string said_of(const Collective& collective, std::size_t rank) {
  std::vector<SeenCollective> seen;
  std::vector<RankWords> of_ranks(collective.sent.size());
  for (std::size_t i = 0; i < of_ranks.size(); ++i) {
    seen.push_back(seen_by(collective, i));
    append_words(seen.back(), of_ranks[i]);
  }
  const ToldCollectives told(std::span(&seen[rank], 1), of_ranks);
  return CollectiveVerdict(seen[rank], told.of(seen[rank].key)).text().value_or("");
}

// Two ranks and the 64 numbers of each.
Collective two_ranks(CollectiveKind kind) {
  const at::Tensor first = at::arange(64, at::kFloat);
  return {kind, {first, 3 * first + 1}, {}};
}

Collective scattered_sum() {
  Collective collective = two_ranks(CollectiveKind::sum_and_scatter);
  const at::Tensor sum = collective.sent[0] + collective.sent[1];
  collective.results = {sum.slice(0, 0, 32).clone(), sum.slice(0, 32).clone()};
  return collective;
}

TEST(CollectiveVerdict, what_was_sent_came_out) {
  Collective sum = two_ranks(CollectiveKind::sum);
  sum.results.assign(2, sum.sent[0] + sum.sent[1]);
  Collective maximum = two_ranks(CollectiveKind::maximum);
  maximum.results.assign(2, at::maximum(maximum.sent[0], maximum.sent[1]));
  Collective gather = two_ranks(CollectiveKind::gather);
  gather.results.assign(2, at::cat({gather.sent[0], gather.sent[1]}));
  for (const Collective& each : {sum, maximum, gather, scattered_sum()}) {
    EXPECT_EQ(said_of(each, 0), "");
    EXPECT_EQ(said_of(each, 1), "");
  }
}

TEST(CollectiveVerdict, a_scattered_sum_with_another_sampled_element) {
  Collective collective = scattered_sum();
  collective.results[1][31] += 1;  // the last one of the whole is a sample
  EXPECT_EQ(said_of(collective, 1), "element 63 came out as 254, what the ranks sent makes 253");
  // The other rank's part is right, and the total that both know is not.
  EXPECT_THAT(said_of(collective, 0), HasSubstr("its elements add up to "));
}

TEST(CollectiveVerdict, a_scattered_sum_with_another_element_that_is_no_sample) {
  Collective collective = scattered_sum();
  collective.results[0][5] += 1;
  EXPECT_THAT(said_of(collective, 0), HasSubstr("its elements add up to 8129, those that"));
}

TEST(CollectiveVerdict, a_scattered_sum_of_this_rank_alone) {
  Collective collective = scattered_sum();
  collective.results[0] = collective.sent[0].slice(0, 0, 32);
  EXPECT_THAT(said_of(collective, 0), HasSubstr("as if no other were in the group"));
}

TEST(CollectiveVerdict, a_scattered_sum_of_the_other_ranks_rows) {
  Collective collective = scattered_sum();
  std::swap(collective.results[0], collective.results[1]);  // the total is right
  EXPECT_THAT(said_of(collective, 0), HasSubstr("element 0 came out as 129"));
}

TEST(CollectiveVerdict, a_scattered_sum_that_did_not_end_everywhere_is_not_judged) {
  Collective collective = scattered_sum();
  collective.results[0][5] += 1;
  collective.results[1] = at::Tensor();
  EXPECT_EQ(said_of(collective, 0), "");
}

TEST(CollectiveVerdict, a_scattered_sum_that_loses_a_nan) {
  Collective collective = scattered_sum();
  collective.sent[1][40] = kNaN;
  EXPECT_EQ(said_of(collective, 0), "1 elements of rank 1 were NaN or infinite, and 0 came out");
  collective.results[1][8] = kNaN;
  EXPECT_EQ(said_of(collective, 0), "");
}

TEST(CollectiveVerdict, a_gather_with_another_bit) {
  Collective collective = two_ranks(CollectiveKind::gather);
  collective.results.assign(2, at::cat({collective.sent[0], collective.sent[1]}));
  collective.results[0] = collective.results[0].clone();
  collective.results[0][70] = 0;
  EXPECT_EQ(said_of(collective, 0), "what came from rank 1 differs from what it sent");
  EXPECT_EQ(said_of(collective, 1), "");
}

TEST(CollectiveVerdict, ranks_in_different_collectives) {
  Collective collective = two_ranks(CollectiveKind::sum);
  collective.sent[1] = at::ones(32);
  collective.results.assign(2, at::ones(64));
  EXPECT_EQ(said_of(collective, 0), "rank 1 was in another collective of that group at the time");
}

// A look at every row of all ranks for each collective would be 80 billion looks: half an hour.
TEST(SeenCollectives, each_row_of_the_other_ranks_is_looked_at_once) {
  constexpr std::size_t kCollectives = 200'000;
  Collective collective{CollectiveKind::sum, {at::ones(4), at::ones(4)}, {}};
  collective.results.assign(2, at::ones(4) * 2);
  const SeenCollective seen = seen_by(collective, 0);
  std::vector<SeenCollective> own(kCollectives, seen);
  RankWords row;
  append_words(seen, row);
  std::vector<RankWords> of_ranks(2);
  for (std::size_t i = 0; i < kCollectives; ++i) {
    own[i].key = i;
    row[0] = static_cast<std::int64_t>(i);
    for (RankWords& words : of_ranks) words.insert(words.end(), row.begin(), row.end());
  }
  EXPECT_THAT(wrong_ones(own, of_ranks), testing::IsEmpty());
}

}  // namespace
}  // namespace telens::features
