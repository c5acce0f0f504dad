#include "features/collective_check/collective_verdict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "features/collective_check/seen_collectives.h"

namespace telens::features {
namespace {

using collective_words::kEnded, collective_words::kRank, collective_words::kResult,
    collective_words::kSent, collective_words::kShape;

CollectiveSums sums_at(std::span<const std::int64_t> words) {
  const auto number = [&](std::size_t i) { return std::bit_cast<double>(words[i]); };
  CollectiveSums sums{.sum = number(0), .magnitude = number(1), .nonfinite = number(2)};
  for (std::size_t i = 0; i < kSamples; ++i) sums.samples[i] = number(3 + i);
  return sums;
}

double get_largest(DType dtype) {
  switch (dtype) {
    case DType::float16:
      return 65504;
    case DType::float64:
      return std::numeric_limits<double>::max();
    default:
      return std::numeric_limits<float>::max();
  }
}

}  // namespace

CollectiveVerdict::CollectiveVerdict(const SeenCollective& own,
                                     std::span<const ToldCollective> told)
    : own_(own) {
  for (const ToldCollective& each : told) {
    peers_.push_back({.world_rank = each.world_rank,
                      .words = each.words,
                      .sent = sums_at(each.words.subspan(kSent)),
                      .result = sums_at(each.words.subspan(kResult)),
                      .ended = each.words[kEnded] != 0});
  }
  if (!own.copies()) result_ = read_sums(own.result);
}

// A rank may have started to look later than the others, or no section may select its layer.
bool CollectiveVerdict::all_tell() const {
  const bool needs_all = own_.kind == CollectiveKind::sum_and_scatter || sends_rows(own_.kind);
  const bool all_ended = !needs_all || std::ranges::all_of(peers_, &Peer::ended);
  return static_cast<std::int64_t>(peers_.size()) == own_.ranks && all_ended;
}

std::optional<std::string> CollectiveVerdict::text() const {
  if (!all_tell()) return std::nullopt;
  if (auto text = another_collective()) return text;
  if (own_.kind == CollectiveKind::gather) return wrong_gather();
  if (sends_rows(own_.kind)) return wrong_exchange();
  if (lost_elements() > 0) {
    return fmt::format("{} elements of rank {} were NaN or infinite, and {} came out",
                       with_most_nonfinite().sent.nonfinite, with_most_nonfinite().world_rank,
                       nonfinite_that_came());
  }
  if (auto text = wrong_element()) return text;
  return wrong_total();
}

std::optional<std::string> CollectiveVerdict::another_collective() const {
  for (const Peer& peer : peers_) {
    if (peer.words[kShape] == own_.shape) continue;
    return fmt::format("rank {} was in another collective of that group at the time",
                       peer.world_rank);
  }
  return std::nullopt;
}

std::optional<std::string> CollectiveVerdict::wrong_gather() const {
  const auto* digests = own_.result.const_data_ptr<std::int64_t>();
  for (const Peer& peer : peers_) {
    const std::int64_t* got = digests + 2 * peer.words[kRank];
    if (got[0] == peer.words[kSent] && got[1] == peer.words[kSent + 1]) continue;
    return fmt::format("the data received from rank {} differs from the data it sent",
                       peer.world_rank);
  }
  return std::nullopt;
}

// Compares sums over the ranks that share a word. In a small group, each word has a single rank.
std::optional<std::string> CollectiveVerdict::wrong_exchange() const {
  const auto find_word = [](std::int64_t rank) {
    return static_cast<std::size_t>(rank % kExchangeWords);
  };
  const std::size_t own = find_word(own_.rank);
  for (std::size_t word = 0; word < static_cast<std::size_t>(kExchangeWords); ++word) {
    std::uint64_t sent = 0;
    std::uint64_t came = 0;
    std::vector<int> senders;
    for (const Peer& peer : peers_) {
      const std::size_t of_peer = find_word(peer.words[kRank]);
      if (of_peer == word) {
        sent += static_cast<std::uint64_t>(peer.words[kSent + own]);
        senders.push_back(peer.world_rank);
      }
      if (of_peer == own) came += static_cast<std::uint64_t>(peer.words[kResult + word]);
    }
    if (sent == came) continue;
    return fmt::format(
        "the data received from rank {} differs from the data it sent{}",
        fmt::join(senders, " or "),
        own_.ranks > kExchangeWords ? ", here or at a rank that shares its digest" : "");
  }
  return std::nullopt;
}

const CollectiveVerdict::Peer& CollectiveVerdict::with_most_nonfinite() const {
  return *std::ranges::max_element(peers_, {},
                                   [](const Peer& peer) { return peer.sent.nonfinite; });
}

double CollectiveVerdict::nonfinite_that_came() const {
  if (own_.kind != CollectiveKind::sum_and_scatter) return result_.nonfinite;
  double all = 0;
  for (const Peer& peer : peers_) all += peer.result.nonfinite;
  return all;
}

// An element that is not finite on a rank is not finite in any sum or maximum.
std::int64_t CollectiveVerdict::lost_elements() const {
  if (own_.copies() || !all_tell() || another_collective()) return 0;
  const double lost = with_most_nonfinite().sent.nonfinite - nonfinite_that_came();
  return lost > 0 ? static_cast<std::int64_t>(lost) : 0;
}

std::optional<std::string> CollectiveVerdict::wrong_element() const {
  const bool is_maximum = own_.kind == CollectiveKind::maximum;
  const ElementRange range = result_range(own_);
  const auto elements = sampled_elements(own_.numel);
  for (std::size_t i = 0; i < kSamples; ++i) {
    if (!range.contains(elements[i])) continue;
    double expected = is_maximum ? -std::numeric_limits<double>::infinity() : 0;
    double magnitude = 0;
    double own = 0;
    for (const Peer& peer : peers_) {
      const double sent = peer.sent.samples[i];
      expected = is_maximum ? std::max(expected, sent) : expected + sent;
      magnitude += std::abs(sent);
      if (peer.words[kRank] == own_.rank) own = sent;
    }
    const double bound = is_maximum ? 0 : summation_bound(own_.dtype, own_.ranks, magnitude);
    // A sum may exceed the range of its dtype; a sum of NaN and infinity is not a number.
    if (!(magnitude + bound <= get_largest(own_.dtype))) continue;
    const double got = result_.samples[i];
    if (std::abs(got - expected) <= bound) continue;
    return fmt::format(
        "element {} is {:.9g}; the data that the ranks sent gives {:.9g}{}", elements[i], got,
        expected,
        got == own ? "; it is this rank's own value, as if the group had no other rank" : "");
  }
  return std::nullopt;
}

std::optional<std::string> CollectiveVerdict::wrong_total() const {
  if (own_.kind == CollectiveKind::maximum || with_most_nonfinite().sent.nonfinite > 0) return {};
  if (nonfinite_that_came() > 0) return std::nullopt;  // it exceeded the range of the dtype
  double sent = 0;
  double magnitude = 0;
  double came = own_.kind == CollectiveKind::sum ? result_.sum : 0;
  for (const Peer& peer : peers_) {
    sent += peer.sent.sum;
    magnitude += peer.sent.magnitude;
    if (own_.kind == CollectiveKind::sum_and_scatter) came += peer.result.sum;
  }
  const double bound = summation_bound(own_.dtype, own_.ranks, magnitude) +
                       summation_bound(DType::float64, 2 * (own_.numel + own_.ranks), magnitude);
  if (std::abs(came - sent) <= bound) return std::nullopt;
  return fmt::format("its elements add up to {:.9g}, those that the ranks sent to {:.9g} +- {:.2g}",
                     came, sent, bound);
}

}  // namespace telens::features
