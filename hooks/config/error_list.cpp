#include "hooks/config/error_list.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "core/base/error.h"

namespace telens::config {

namespace {

// The list shows the first kListed of at most this many entries, in text order: link checks run
// after the section checks and may find earlier places.
constexpr std::size_t kMostKept = 1000;

// The longest message in bytes: some messages contain lists of names.
constexpr std::size_t kLongestMessage = 4000;

std::size_t hash_of(const Location& where, const std::string& message) {
  return std::hash<std::string>{}(fmt::format("{}:{}:{}", where.line, where.column, message));
}

}  // namespace

void ErrorList::add_to(Entries& entries, const Location& where, std::string message) {
  if (!context_.empty()) message = fmt::format("{}: {}", fmt::join(context_, ", "), message);
  message = quotable(message, kLongestMessage);
  // A wrong value that several items share (an anchor, a default next to a struct) is reported
  // once.
  const bool is_new = entries.known.insert(hash_of(where, message)).second;
  if (is_new && entries.kept.size() < kMostKept) {
    entries.kept.push_back({where, std::move(message)});
  }
}

std::vector<std::string> ErrorList::lines() const { return split_lines(errors_); }

std::vector<std::string> ErrorList::warning_lines() const { return split_lines(warnings_); }

std::vector<std::string> ErrorList::split_lines(const Entries& entries) {
  std::vector<Entry> sorted = entries.kept;
  std::ranges::stable_sort(sorted, {}, [](const Entry& entry) {
    return std::tuple(entry.where.line, entry.where.column);
  });
  if (sorted.size() > kListed) sorted.resize(kListed);
  std::vector<std::string> lines;
  for (const Entry& entry : sorted) {
    lines.push_back(fmt::format("{}: {}", to_string(entry.where), entry.message));
  }
  if (entries.known.size() > lines.size()) {
    lines.push_back(fmt::format("... and {} more", entries.known.size() - lines.size()));
  }
  return lines;
}

std::string ErrorList::text() const { return fmt::format("{}", fmt::join(lines(), "\n")); }

void ErrorList::raise_if_any() const {
  if (!empty()) throw ConfigError(text());
}

}  // namespace telens::config
