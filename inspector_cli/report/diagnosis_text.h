// A diagnosis as a person reads it.
#pragma once

#include <string>
#include <vector>

#include "features/diagnosis/diagnosis.h"

namespace telens::cli {

// Paragraphs of lines of at most `width` columns, as far as words allow; `run` is what the commands
// that are proposed are to be asked about. Prints to stdout, in color on a terminal.
void print_diagnosis(const diagnosis::Diagnosis& diagnosis, const diagnosis::Facts& facts,
                     const std::string& run, std::size_t width);

// recording_notes() of the run as lines on stdout, above the findings.
void print_notes(const std::vector<std::string>& notes, std::size_t width);

// All rules as sections of Markdown, for docs/diagnosis.md.
std::string rules_markdown();
// One object; docs/diagnosis.md describes it.
std::string rules_json();

}  // namespace telens::cli
