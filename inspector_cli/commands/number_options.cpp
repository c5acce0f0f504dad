#include "inspector_cli/commands/number_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>

namespace telens::cli {

CLI::Validator whole_number_from(std::int64_t lowest, std::int64_t highest) {
  const auto mistake_in = [lowest, highest](const std::string& text) -> std::string {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool whole = error == std::errc() && end == text.data() + text.size();
    if (whole && number >= lowest && number <= highest) return "";
    const bool too_large = error == std::errc::result_out_of_range || (whole && number > highest);
    const std::string at_most = too_large ? fmt::format(" to {}", highest) : "";
    return fmt::format("expected a whole number from {}{}, got '{}'", lowest, at_most, text);
  };
  return CLI::Validator(mistake_in, "");
}

CLI::Validator seconds_up_to(double longest) {
  const auto mistake_in = [longest](const std::string& text) -> std::string {
    double seconds = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    const bool is_number = error == std::errc() && end == text.data() + text.size();
    if (is_number && seconds > 0 && seconds <= longest) return "";
    return fmt::format("expected more than 0 seconds and at most {}, got '{}'", longest, text);
  };
  return CLI::Validator(mistake_in, "");
}

void add_top(CLI::App& command, int& top) {
  command.add_option("--top", top, "Only the first N rows")
      ->type_name("N")
      ->check(whole_number_from(1));
}

}  // namespace telens::cli
