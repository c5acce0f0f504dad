// A diagnosis as a person reads it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "analysis/diagnosis.h"

namespace telens::cli {

// Prints the findings to stdout, in color on a terminal, in lines of at most `width` columns if
// words allow. `run` is the path that the proposed commands name.
void print_diagnosis(const diagnosis::Diagnosis& diagnosis, const diagnosis::Facts& facts,
                     const std::string& run, std::size_t width);

// Prints the rules that did not run: one line about those that lack data, or with `list` a line for
// each. `config` is the run's, whose features are already on.
void print_skipped_rules(const diagnosis::Diagnosis& diagnosis, std::string_view config, bool list,
                         std::size_t width);

// Prints how the run ended: the first line of `telens diagnose`.
void print_ending(const diagnosis::RunEnding& ending, std::size_t width);

// recording_notes() of the run as lines on stdout, above the findings.
void print_notes(const std::vector<std::string>& notes, std::size_t width);

// All rules as sections of Markdown, for docs/diagnosis_rules.md.
std::string rules_markdown();
// One object; docs/diagnosis.md describes it.
std::string rules_json();

}  // namespace telens::cli
