#include "features/collective_check/seen_collectives.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "core/base/fnv1a.h"
#include "hooks/engine/rank_exchange.h"
#include "hooks/tensor_ops.h"

namespace telens::features {
namespace {

// Returns the unit roundoff: half the distance from 1 to the next number. Integers are not rounded.
double unit_roundoff(DType dtype) {
  constexpr auto kUint16 = static_cast<DType>(27);
  constexpr auto kUint64 = static_cast<DType>(29);
  if (is_integer(dtype) || (dtype >= kUint16 && dtype <= kUint64)) return 0;
  switch (dtype) {
    case DType::float64:
      return 0x1p-53;
    case DType::float32:
      return 0x1p-24;
    case DType::float16:
      return 0x1p-11;
    case DType::bfloat16:
      return 0x1p-8;
    default:
      return 1;
  }
}

}  // namespace

CollectiveSums read_sums(const TensorHandle& on_host) {
  const auto* numbers = on_host.const_data_ptr<double>();
  CollectiveSums sums{.sum = numbers[0], .magnitude = numbers[1], .nonfinite = numbers[2]};
  for (std::size_t i = 0; i < kSamples; ++i) sums.samples[i] = numbers[3 + i];
  return sums;
}

double summation_bound(DType dtype, std::int64_t ranks, double magnitude) {
  const double nu = static_cast<double>(ranks) * unit_roundoff(dtype);
  if (nu >= 0.5) return std::numeric_limits<double>::infinity();
  return nu / (1 - nu) * magnitude;
}

using collective_words::kEnded, collective_words::kRank, collective_words::kResult,
    collective_words::kSent, collective_words::kShape, collective_words::kWords;

void append_words(const SeenCollective& seen, RankWords& words) {
  const std::size_t begin = words.size();
  words.resize(begin + kWords);
  const std::span row = std::span(words).subspan(begin);
  row[0] = static_cast<std::int64_t>(seen.key);
  row[kShape] = seen.shape;
  row[kRank] = seen.rank;
  row[kEnded] = seen.result.defined() ? 1 : 0;
  if (seen.kind == CollectiveKind::gather) {
    std::copy_n(seen.sent.const_data_ptr<std::int64_t>(), 2, row.begin() + kSent);
    return;
  }
  if (sends_rows(seen.kind)) {
    static_assert(kExchangeWords <= kSumsNumbers);
    const auto copy = [&](const TensorHandle& from, std::size_t at) {
      std::copy_n(from.const_data_ptr<std::int64_t>(), kExchangeWords,
                  row.begin() + static_cast<std::ptrdiff_t>(at));
    };
    copy(seen.sent, kSent);
    if (seen.result.defined()) copy(seen.result, kResult);
    return;
  }
  const auto put = [&](const TensorHandle& sums, std::size_t at) {
    const auto* numbers = sums.const_data_ptr<double>();
    for (std::int64_t i = 0; i < kSumsNumbers; ++i) {
      row[at + static_cast<std::size_t>(i)] = std::bit_cast<std::int64_t>(numbers[i]);
    }
  };
  put(seen.sent, kSent);
  if (seen.result.defined()) put(seen.result, kResult);
}

ReportedCollectives::ReportedCollectives(std::span<const SeenCollective> own,
                                         std::span<const RankWords> of_ranks) {
  for (const SeenCollective& each : own) by_key_.try_emplace(each.key);
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const std::span<const std::int64_t> words(of_ranks[rank]);
    for (std::size_t i = 0; i + kWords <= words.size(); i += kWords) {
      const auto known = by_key_.find(static_cast<std::uint64_t>(words[i]));
      if (known == by_key_.end()) continue;
      known->second.push_back({static_cast<int>(rank), words.subspan(i, kWords)});
    }
  }
}

std::span<const ReportedCollective> ReportedCollectives::of(std::uint64_t key) const {
  const auto known = by_key_.find(key);
  if (known == by_key_.end()) return {};
  return known->second;
}

namespace {

std::string_view get_name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::gather:
      return "all-gather";
    case CollectiveKind::sum:
      return "all-reduce";
    case CollectiveKind::sum_and_scatter:
      return "reduce-scatter";
    case CollectiveKind::exchange:
      return "all-to-all";
    case CollectiveKind::pass:
      return "transfer round a ring";
    case CollectiveKind::maximum:
      break;
  }
  return "maximum";
}

// Ranks may exchange different numbers of rows.
std::string get_sizes(const ObservedCollective& call) {
  if (!sends_rows(call.kind)) {
    return fmt::format("{}", fmt::join(call.sent.sizes(), ", "));
  }
  return fmt::format("{}", fmt::join(call.sent.sizes().subspan(1), ", "));
}

TensorHandle get_words(const ObservedCollective& call, const SeenCollective& seen) {
  switch (call.kind) {
    case CollectiveKind::gather:
      return tensor_ops::digests_of_parts(call.sent, 1);
    case CollectiveKind::exchange:
    case CollectiveKind::pass:
      return tensor_ops::exchange_words(call.sent, call.rows->sent, seen.rank, /*received=*/false);
    default:
      return tensor_ops::collective_sums(call.sent, call.kind, 0, seen.numel);
  }
}

}  // namespace

std::size_t SeenCollectives::begin(const ObservedCollective& call, CollectivePlace place) {
  const RankGroup& ranks = *call.group;
  const std::uint64_t group = part_of_group(ranks);
  const std::uint64_t number = in_group_[group]++;
  const std::string shape = fmt::format("{} of {} [{}]", get_name(call.kind),
                                        telens::get_name(call.sent.dtype()), get_sizes(call));
  const std::string name = ranks.description();
  SeenCollective seen{.place = std::move(place),
                      .kind = call.kind,
                      .key = mixed(group, number),
                      .shape = static_cast<std::int64_t>(fnv1a(shape)),
                      .title = fmt::format("{} over {}", shape, name.empty() ? "its group" : name),
                      .dtype = call.sent.dtype(),
                      .ranks = ranks.size(),
                      .rank = ranks.rank(),
                      .numel = call.sent.numel(),
                      .sent = {},
                      .result = {}};
  if (call.rows != nullptr) seen.received = call.rows->received;
  seen.sent = get_words(call, seen);
  all_.push_back(std::move(seen));
  return all_.size() - 1;
}

void SeenCollectives::end(std::size_t number, const TensorHandle& result) {
  if (number >= all_.size()) return;
  SeenCollective& seen = all_[number];
  if (sends_rows(seen.kind)) {
    seen.result = tensor_ops::exchange_words(result, seen.received, seen.rank, /*received=*/true);
    return;
  }
  if (seen.kind != CollectiveKind::gather) {
    const ElementRange range = result_range(seen);
    seen.result = tensor_ops::collective_sums(result, seen.kind, range.first, seen.numel);
    return;
  }
  seen.result = tensor_ops::digests_of_parts(result, seen.ranks);
}

RankWords SeenCollectives::words() {
  RankWords words;
  for (SeenCollective& each : all_) {
    each.sent = tensor_ops::to_host(each.sent);
    if (each.result.defined()) each.result = tensor_ops::to_host(each.result);
    append_words(each, words);
  }
  return words;
}

std::vector<WrongCollective> wrong_ones(std::span<const SeenCollective> own,
                                        std::span<const RankWords> of_ranks) {
  const ReportedCollectives reported(own, of_ranks);
  std::vector<WrongCollective> wrong;
  for (const SeenCollective& each : own) {
    if (!each.result.defined()) continue;
    const CollectiveVerdict verdict(each, reported.of(each.key));
    if (const auto text = verdict.text()) {
      wrong.push_back(
          {each.place, fmt::format("{}: {}", each.title, *text), verdict.lost_elements()});
    }
  }
  return wrong;
}

std::vector<CollectivePlace> SeenCollectives::places() const {
  std::vector<CollectivePlace> places;
  for (const SeenCollective& each : all_) places.push_back(each.place);
  std::ranges::sort(places, [](const auto& a, const auto& b) { return a < b; });
  const auto rest = std::ranges::unique(
      places, [](const auto& a, const auto& b) { return !(a < b) && !(b < a); });
  places.erase(rest.begin(), rest.end());
  return places;
}

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
                                     std::span<const ReportedCollective> reported)
    : own_(own) {
  for (const ReportedCollective& each : reported) {
    peers_.push_back({.world_rank = each.world_rank,
                      .words = each.words,
                      .sent = sums_at(each.words.subspan(kSent)),
                      .result = sums_at(each.words.subspan(kResult)),
                      .ended = each.words[kEnded] != 0});
  }
  if (!own.copies()) result_ = read_sums(own.result);
}

// A rank may have started to look later than the others, or no section may select its layer.
bool CollectiveVerdict::all_report() const {
  const bool needs_all = own_.kind == CollectiveKind::sum_and_scatter || sends_rows(own_.kind);
  const bool all_ended = !needs_all || std::ranges::all_of(peers_, &Peer::ended);
  return static_cast<std::int64_t>(peers_.size()) == own_.ranks && all_ended;
}

std::optional<std::string> CollectiveVerdict::text() const {
  if (!all_report()) return std::nullopt;
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
  if (own_.copies() || !all_report() || another_collective()) return 0;
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
