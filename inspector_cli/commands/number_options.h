// Numbers as options: CLI11's own range checks print limits of 300 digits.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>

namespace telens::cli {

// Refuses what is no whole number from `lowest` to `highest`, and says which were expected.
CLI::Validator whole_number_from(std::int64_t lowest, std::int64_t highest = INT32_MAX);

// Refuses what is no number above 0 and at most `longest`.
CLI::Validator seconds_up_to(double longest);

// --top N of commands that print tables; 0 stays for all rows.
void add_top(CLI::App& command, int& top);

}  // namespace telens::cli
