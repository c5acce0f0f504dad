// A diagnosis as a person reads it, and as a program does.
#pragma once

#include <string>
#include <vector>

#include "features/diagnosis/diagnosis.h"

namespace telens::cli {

// "layers.3.fc1 activation fprop, rank 2", printable; "the whole run" for no place.
std::string label_of(const diagnosis::Place& place, const diagnosis::Facts& facts);

// Paragraphs of lines of at most `width` columns, as far as words allow; `run` is what the commands
// that are proposed are to be asked about. Prints to stdout, in color on a terminal.
void print_diagnosis(const diagnosis::Diagnosis& diagnosis, const diagnosis::Facts& facts,
                     const std::string& run, std::size_t width);

// docs/diagnosis.md has the schema. `notes`: recording_notes() of the run.
inline constexpr int kDiagnosisSchema = 1;
std::string diagnosis_json(const diagnosis::Diagnosis& diagnosis, const diagnosis::Facts& facts,
                           const std::string& run, const std::vector<std::string>& notes = {});
// The same notes as lines on stdout, above the findings.
void print_notes(const std::vector<std::string>& notes, std::size_t width);

// All rules as sections of Markdown, for docs/diagnosis.md.
std::string rules_markdown();

// The rule's next step with the names of this finding.
std::string next_step(const diagnosis::Finding& finding, const diagnosis::Facts& facts,
                      const std::string& run);

}  // namespace telens::cli
