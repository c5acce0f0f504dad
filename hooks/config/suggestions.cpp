#include "hooks/config/suggestions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "hooks/config/value.h"

namespace telens::config {
namespace {

// If one name contains the other, they are similar only if the shared part has at least this
// length.
constexpr std::size_t kTellingLength = 3;

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

bool contains_either(const std::string& a, const std::string& b) {
  const std::string& shorter = a.size() < b.size() ? a : b;
  const std::string& longer = a.size() < b.size() ? b : a;
  return shorter.size() >= kTellingLength && longer.find(shorter) != std::string::npos;
}

// Features accept fewer statistics than this.
constexpr std::size_t kMostListed = 200;

}  // namespace

std::size_t edit_distance(std::string_view a_text, std::string_view b_text) {
  const std::string a = lower(a_text);
  const std::string b = lower(b_text);
  // Three rows of the table: for prefixes of a that are two, one and zero letters shorter.
  std::vector<std::size_t> before_last(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before_last, last);
    std::swap(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitution = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, substitution});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::vector<std::string> nearest_names(std::string_view written, std::span<const std::string> names,
                                       std::size_t count) {
  struct Candidate {
    bool continues_written;  // "gradient" for "grad": an abbreviation, not a typing error
    std::size_t distance;
    std::string name;
  };
  if (written.size() > kLongestQuote) return {};
  const std::string lower_written = lower(written);
  std::vector<Candidate> candidates;
  for (const std::string& name : names) {
    if (name.size() > kLongestQuote) continue;
    const std::size_t distance = edit_distance(written, name);
    const std::size_t allowed = std::max(written.size(), name.size()) / 3;
    if (distance <= allowed || contains_either(lower_written, lower(name))) {
      const bool continues =
          written.size() >= kTellingLength && lower(name).starts_with(lower_written);
      candidates.push_back({continues, distance, name});
    }
  }
  std::ranges::stable_sort(candidates, {}, [](const Candidate& each) {
    return std::pair(!each.continues_written, each.distance);
  });
  if (candidates.size() > count) candidates.resize(count);
  std::vector<std::string> nearest;
  for (Candidate& candidate : candidates) nearest.push_back(std::move(candidate.name));
  return nearest;
}

std::string suggestion(std::string_view written, std::span<const std::string> names) {
  const std::vector<std::string> nearest = nearest_names(written, names, 1);
  return nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest.front());
}

std::string quoted_list(std::span<const std::string> names) {
  if (names.empty()) return "(none)";
  std::string list;
  for (const std::string& name : names.first(std::min(names.size(), kMostListed))) {
    list += fmt::format("{}'{}'", list.empty() ? "" : ", ", quotable(name));
  }
  if (names.size() > kMostListed) list += fmt::format(" and {} more", names.size() - kMostListed);
  return list;
}

}  // namespace telens::config
