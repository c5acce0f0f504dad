// Verdicts on collectives of which all data of all ranks is known.
#include "features/collective_check/seen_collectives.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <limits>

#include "core/ops/collective_sums.h"
#include "core/ops/tensor_digest.h"
#include "core/torch_compat.h"

namespace telens::features {
namespace {

using ops::collective_sums;
using ops::compute_digest;
using ops::exchange_words;

using testing::HasSubstr;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// A collective of all ranks: what each rank sent, and the result on each.
struct Collective {
  CollectiveKind kind;
  std::vector<at::Tensor> sent;
  std::vector<at::Tensor> results;  // undefined: it did not end on this rank
};

at::Tensor in_words(const Collective& collective, const SeenCollective& seen) {
  const at::Tensor& result = collective.results[static_cast<std::size_t>(seen.rank)];
  if (!result.defined()) return {};
  if (seen.kind == CollectiveKind::exchange) {
    const std::vector<std::int64_t> one_each(static_cast<std::size_t>(seen.ranks), 1);
    return exchange_words({result, one_each, seen.rank, /*received=*/true});
  }
  if (seen.kind != CollectiveKind::gather) {
    return collective_sums(result, seen.kind, result_range(seen).first, seen.numel);
  }
  std::vector<at::Tensor> digests;
  for (const at::Tensor& part : result.chunk(seen.ranks)) digests.push_back(compute_digest(part));
  return at::stack(digests);
}

at::Tensor sent_in_words(const Collective& collective, std::size_t rank) {
  const at::Tensor& sent = collective.sent[rank];
  if (collective.kind == CollectiveKind::gather) return compute_digest(sent);
  if (collective.kind != CollectiveKind::exchange) {
    return collective_sums(sent, collective.kind, 0, sent.numel());
  }
  const std::vector<std::int64_t> one_each(collective.sent.size(), 1);
  return exchange_words({sent, one_each, static_cast<std::int64_t>(rank)});
}

SeenCollective seen_by(const Collective& collective, std::size_t rank) {
  const at::Tensor& sent = collective.sent[rank];
  SeenCollective seen{.place = {"layer", "output"},
                      .kind = collective.kind,
                      .key = 17,
                      .shape = sent.numel(),
                      .title = "a collective",
                      .dtype = to_handle(sent.scalar_type()),
                      .ranks = static_cast<std::int64_t>(collective.sent.size()),
                      .rank = static_cast<std::int64_t>(rank),
                      .numel = sent.numel(),
                      .sent = sent_in_words(collective, rank),
                      .result = {}};
  seen.result = in_words(collective, seen);
  return seen;
}

// "": nothing is wrong.
std::string describe_collective(const Collective& collective, std::size_t rank) {
  std::vector<SeenCollective> seen;
  std::vector<RankWords> of_ranks(collective.sent.size());
  for (std::size_t i = 0; i < of_ranks.size(); ++i) {
    seen.push_back(seen_by(collective, i));
    append_words(seen.back(), of_ranks[i]);
  }
  const ReportedCollectives reported(std::span(&seen[rank], 1), of_ranks);
  return CollectiveVerdict(seen[rank], reported.of(seen[rank].key)).text().value_or("");
}

// Two ranks with 64 numbers each.
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

TEST(CollectiveVerdict, received_equals_sent) {
  Collective sum = two_ranks(CollectiveKind::sum);
  sum.results.assign(2, sum.sent[0] + sum.sent[1]);
  Collective maximum = two_ranks(CollectiveKind::maximum);
  maximum.results.assign(2, at::maximum(maximum.sent[0], maximum.sent[1]));
  Collective gather = two_ranks(CollectiveKind::gather);
  gather.results.assign(2, at::cat({gather.sent[0], gather.sent[1]}));
  for (const Collective& each : {sum, maximum, gather, scattered_sum()}) {
    EXPECT_EQ(describe_collective(each, 0), "");
    EXPECT_EQ(describe_collective(each, 1), "");
  }
}

TEST(CollectiveVerdict, a_scattered_sum_with_another_sampled_element) {
  Collective collective = scattered_sum();
  collective.results[1][31] += 1;  // the last element of the whole is sampled
  EXPECT_EQ(describe_collective(collective, 1),
            "element 63 is 254; the data that the ranks sent gives 253");
  // This rank's part is right, but the total that both ranks know is not.
  EXPECT_THAT(describe_collective(collective, 0), HasSubstr("its elements add up to "));
}

TEST(CollectiveVerdict, scattered_sum_with_wrong_unsampled_element) {
  Collective collective = scattered_sum();
  collective.results[0][5] += 1;
  EXPECT_THAT(describe_collective(collective, 0),
              HasSubstr("its elements add up to 8129, those that"));
}

TEST(CollectiveVerdict, scattered_sum_contains_only_this_rank) {
  Collective collective = scattered_sum();
  collective.results[0] = collective.sent[0].slice(0, 0, 32);
  EXPECT_THAT(describe_collective(collective, 0), HasSubstr("as if the group had no other rank"));
}

TEST(CollectiveVerdict, a_scattered_sum_of_the_other_ranks_rows) {
  Collective collective = scattered_sum();
  std::swap(collective.results[0], collective.results[1]);  // the total is right
  EXPECT_THAT(describe_collective(collective, 0), HasSubstr("element 0 is 129"));
}

TEST(CollectiveVerdict, a_scattered_sum_that_did_not_end_everywhere_is_not_judged) {
  Collective collective = scattered_sum();
  collective.results[0][5] += 1;
  collective.results[1] = at::Tensor();
  EXPECT_EQ(describe_collective(collective, 0), "");
}

TEST(CollectiveVerdict, a_scattered_sum_that_loses_a_nan) {
  Collective collective = scattered_sum();
  collective.sent[1][40] = kNaN;
  EXPECT_EQ(describe_collective(collective, 0),
            "1 elements of rank 1 were NaN or infinite, and 0 came out");
  collective.results[1][8] = kNaN;
  EXPECT_EQ(describe_collective(collective, 0), "");
}

TEST(CollectiveVerdict, a_gather_with_another_bit) {
  Collective collective = two_ranks(CollectiveKind::gather);
  collective.results.assign(2, at::cat({collective.sent[0], collective.sent[1]}));
  collective.results[0] = collective.results[0].clone();
  collective.results[0][70] = 0;
  EXPECT_EQ(describe_collective(collective, 0),
            "the data received from rank 1 differs from the data it sent");
  EXPECT_EQ(describe_collective(collective, 1), "");
}

TEST(CollectiveVerdict, ranks_in_different_collectives) {
  Collective collective = two_ranks(CollectiveKind::sum);
  collective.sent[1] = at::ones(32);
  collective.results.assign(2, at::ones(64));
  EXPECT_EQ(describe_collective(collective, 0),
            "rank 1 was in another collective of that group at the time");
}

// Reading every row of all ranks again for each collective would be 80 billion reads: half an hour.
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

// Row r of rank s goes to rank r, as its row s.
Collective exchange(std::int64_t ranks) {
  Collective collective{CollectiveKind::exchange, {}, {}};
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    collective.sent.push_back(at::arange(2 * ranks, at::kFloat).view({ranks, 2}) + 100 * rank);
  }
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<at::Tensor> rows;
    for (const at::Tensor& sent : collective.sent) rows.push_back(sent[rank]);
    collective.results.push_back(at::stack(rows));
  }
  return collective;
}

TEST(CollectiveVerdict, correct_exchange_is_accepted) {
  for (const std::int64_t ranks : {2, 11, 12, 25}) {
    EXPECT_EQ(describe_collective(exchange(ranks), 0), "");
    EXPECT_EQ(describe_collective(exchange(ranks), 1), "");
  }
}

TEST(CollectiveVerdict, exchange_with_wrong_bit_is_found_at_its_receiver) {
  Collective collective = exchange(3);
  collective.results[1][2][0] += 1;
  EXPECT_EQ(describe_collective(collective, 0), "");
  EXPECT_EQ(describe_collective(collective, 1),
            "the data received from rank 2 differs from the data it sent");
}

TEST(CollectiveVerdict, an_exchange_of_rows_in_another_order) {
  Collective collective = exchange(3);
  collective.results[0] = collective.results[0].flip(0);
  EXPECT_EQ(describe_collective(collective, 0),
            "the data received from rank 0 differs from the data it sent");
}

// There are fewer words than ranks: ranks 1, 12 and 23 share one. An error on one of them must be
// seen, and also that two of them received each other's rows, which does not change their sum.
TEST(CollectiveVerdict, an_exchange_of_more_ranks_than_words) {
  Collective collective = exchange(25);
  std::swap(collective.results[12], collective.results[23]);
  EXPECT_EQ(describe_collective(collective, 0), "");
  EXPECT_THAT(describe_collective(collective, 1),
              HasSubstr("the data received from rank 0 or 11 or 22 differs"));
  EXPECT_THAT(describe_collective(collective, 12),
              HasSubstr("here or at a rank that shares its digest"));
}

}  // namespace
}  // namespace telens::features
