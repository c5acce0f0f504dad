#include "core/distributed/warn_once.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstdlib>
#include <iostream>
#include <mutex>
#include <set>
#include <string>

namespace telens {
namespace {

// torchrun sets RANK; a process without it counts as the first.
bool is_first_rank() {
  const char* rank = std::getenv("RANK");
  return rank == nullptr || std::string_view(rank) == "0";
}

bool is_new(std::string_view text) {
  static std::mutex mutex;
  static auto& texts = *new std::set<std::string, std::less<>>;  // leaked: outlives every thread
  const std::lock_guard lock(mutex);
  if (texts.contains(text)) return c10::WarningUtils::get_warnAlways();
  texts.emplace(text);
  return true;
}

}  // namespace

void warn_once(std::string_view text, ShownBy shown_by) {
  const bool shows = shown_by == ShownBy::this_rank || is_first_rank();
  if (is_new(text) && shows) std::cerr << fmt::format("telens: {}\n", text);
}

}  // namespace telens
