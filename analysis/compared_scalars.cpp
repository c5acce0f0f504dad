#include "analysis/compared_scalars.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "analysis/divergence.h"
#include "analysis/pace.h"
#include "analysis/rules/recorded_rate.h"

namespace telens::analysis {
namespace {

constexpr std::string_view kLoss = "loss";
constexpr double kRounding = 0x1p-20;  // relative: a few roundings to FP32
constexpr double kMostByFormat = 0.5;  // a factor of 2 counts however deep the model is
// Differences of runs with other seeds. A loss of small models varies by 0.1 bits; other numbers,
// such as a norm of gradients, count as gradients of few layers (analysis/seed_scatter.h).
constexpr double kLossOfSeeds = 0.1;  // bits
constexpr double kOtherOfSeeds = 1.5;
constexpr double kShareOfSeeds = 0.1;

// What the tolerance of a scalar depends on.
enum class Role : std::uint8_t { loss, rate, share, other };

Role get_role(std::string_view name) {
  if (name == kLoss) return Role::loss;
  if (is_rate(name)) return Role::rate;
  return name.ends_with('%') ? Role::share : Role::other;
}

Series make_series(const Scalars& scalars) { return {.place = {}, .points = scalars.points}; }

const Scalars* find_scalars(const Facts& facts, const Scalars& like) {
  for (const Scalars& each : facts.scalars()) {
    const bool is_same_rank = each.rank == like.rank || facts.ranks() == 1;
    if (each.name == like.name && is_same_rank) return &each;
  }
  return nullptr;
}

class ScalarTolerance {
 public:
  ScalarTolerance(Role role, const Series& a, std::optional<Series> third, double by_format,
                  bool other_seeds)
      : a_(a), role_(role), third_(std::move(third)), kind_(get_kind(role)) {
    const bool has_error = role == Role::share || role == Role::other;
    explained_ = std::max(kRounding, has_error ? std::min(by_format, kMostByFormat) : 0);
    if (third_) return;
    explained_ = std::max(explained_, chance_by_steps(kind_, a));
    if (other_seeds) allow_other_seeds();
  }

  static Compared get_kind(Role role) {
    return role == Role::share ? Compared::share : Compared::size;
  }

  double at(std::int64_t iteration) const {
    if (third_) return std::max(explained_, chance_by_run(kind_, a_, *third_, iteration));
    const double faster = pace_.at(iteration);
    return faster > 0 ? from_bits(to_bits(explained_) + faster) : explained_;
  }

 private:
  // A learning rate does not depend on the seed.
  void allow_other_seeds() {
    if (role_ == Role::rate) return;
    if (role_ == Role::share) {
      explained_ = std::max(explained_, kShareOfSeeds);
      return;
    }
    const double least = role_ == Role::loss ? kLossOfSeeds : kOtherOfSeeds;
    explained_ = std::max(explained_, from_bits(least));
    pace_ = get_pace_of_sizes(a_);
  }

  const Series& a_;
  Role role_;
  std::optional<Series> third_;
  Compared kind_;
  double explained_ = 0;
  Pace pace_ = {};
};

Place get_place(const Facts& facts, const Scalars& scalars) {
  return {.rank = facts.ranks() > 1 ? scalars.rank : kAllRanks};
}

}  // namespace

std::optional<Series> get_loss(const Facts& facts) {
  for (const Scalars& each : facts.scalars()) {
    if (each.name == kLoss) return make_series(each);
  }
  return std::nullopt;
}

void compare_scalars(const Facts& a, const Facts& b, const Facts* spread, double by_format,
                     RunDifference& result) {
  std::set<const Scalars*> used;
  for (const Scalars& each : a.scalars()) {
    const Scalars* other = find_scalars(b, each);
    const Series of_a = make_series(each);
    const Series of_b = other != nullptr ? make_series(*other) : Series();
    const Place place = get_place(a, each);
    if (!have_common_iteration(of_a, of_b)) {
      result.unmatched_in_a.push_back({.place = place, .layer = {}, .quantity = each.name});
      continue;
    }
    used.insert(other);
    ++result.compared;
    const Scalars* third = spread != nullptr ? find_scalars(*spread, each) : nullptr;
    const Role role = get_role(each.name);
    const ScalarTolerance tolerance(
        role, of_a, third != nullptr ? std::optional(make_series(*third)) : std::nullopt, by_format,
        result.other_seeds);
    auto found = find_divergence(ScalarTolerance::get_kind(role), of_a, of_b,
                                 [&](std::int64_t iteration) { return tolerance.at(iteration); });
    if (!found) continue;
    found->place = place;
    found->quantity = each.name;
    result.divergences.push_back(std::move(*found));
  }
  for (const Scalars& each : b.scalars()) {
    if (used.contains(&each)) continue;
    result.unmatched_in_b.push_back(
        {.place = get_place(b, each), .layer = {}, .quantity = each.name});
  }
}

}  // namespace telens::analysis
