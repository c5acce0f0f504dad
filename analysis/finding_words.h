// A finding in words: where it is, and what to do next.
#pragma once

#include <string>
#include <vector>

#include "analysis/diagnosis_finding.h"
#include "analysis/facts.h"

namespace telens::analysis {

// "layers.3.fc1 activation fprop, rank 2", printable; "the whole run" for no place.
std::string make_label(const Place& place, const Facts& facts);

// "iteration 12", "iterations 12 to 39"
std::string get_iterations(const Finding& finding);

// The rule's next steps with the names of this finding, each a command that begins with "telens "
// or words; `run` is what the commands are to be asked about.
std::vector<std::string> next_steps(const Finding& finding, const Facts& facts,
                                    const std::string& run);
// The same as one sentence.
std::string next_step(const Finding& finding, const Facts& facts, const std::string& run);

}  // namespace telens::analysis
