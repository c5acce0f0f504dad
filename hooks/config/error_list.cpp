#include "hooks/config/error_list.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>

#include "core/base/error.h"

namespace telens::config {

void ErrorList::add_to(std::vector<Entry>& entries, const Location& where, std::string message) {
  if (!context_.empty()) message = fmt::format("{}: {}", fmt::join(context_, ", "), message);
  // A value that several items share (an anchor, a default beside a struct) is wrong once.
  const bool known = std::ranges::any_of(entries, [&](const Entry& entry) {
    return entry.message == message && entry.where.line == where.line &&
           entry.where.column == where.column;
  });
  if (!known) entries.push_back({where, std::move(message)});
}

std::vector<std::string> ErrorList::lines() const { return split_lines(errors_); }

std::vector<std::string> ErrorList::warning_lines() const { return split_lines(warnings_); }

std::vector<std::string> ErrorList::split_lines(std::vector<Entry> entries) {
  std::ranges::stable_sort(entries, {}, [](const Entry& entry) {
    return std::tuple(entry.where.line, entry.where.column);
  });
  std::vector<std::string> lines;
  for (const Entry& entry : entries) {
    lines.push_back(fmt::format("{}: {}", to_string(entry.where), entry.message));
  }
  return lines;
}

std::string ErrorList::text() const { return fmt::format("{}", fmt::join(lines(), "\n")); }

void ErrorList::raise_if_any() const {
  if (!empty()) throw ConfigError(text());
}

}  // namespace telens::config
