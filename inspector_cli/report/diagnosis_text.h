// Text output of `telens diagnose`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "analysis/diagnosis.h"

namespace telens::cli {

// Prints the findings to stdout, in color on a terminal, in lines of at most `width` columns if
// words allow. `run` is the run's path in suggested commands. `all`: all findings, not only the
// first three.
void print_diagnosis(const diagnosis::Diagnosis& diagnosis, const diagnosis::Facts& facts,
                     const std::string& run, bool all, std::size_t width);

// Prints the rules that were skipped for missing data, in one line, or one line each with `list`.
// `config` is the run's config, which shows the features that are already enabled.
void print_skipped_rules(const diagnosis::Diagnosis& diagnosis, std::string_view config, bool list,
                         std::size_t width);

// Prints how the run ended: the first line of `telens diagnose`.
void print_ending(const diagnosis::RunEnding& ending, std::size_t width);

// Prints recording_notes() of the run, above the findings.
void print_notes(const std::vector<std::string>& notes, std::size_t width);

// Returns all rules as sections of Markdown, for docs/diagnosis_rules.md.
std::string rules_markdown();
// Returns all rules as one JSON object; docs/diagnosis.md describes it.
std::string rules_json();

}  // namespace telens::cli
