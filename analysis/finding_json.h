// A diagnosis as a program reads it; docs/diagnosis.md has the schema.
#pragma once

#include <string>
#include <vector>

#include "analysis/diagnosis.h"
#include "core/base/json.h"

namespace telens::analysis {

inline constexpr int kSchemaVersion = 1;

// Returns one line of JSON. `run` is the path that the user passed; `notes` says why the recording
// is incomplete.
std::string diagnosis_json(const Diagnosis& diagnosis, const Facts& facts, const std::string& run,
                           const std::vector<std::string>& notes = {});

// An entry of its `findings`.
Json ranked_json(const Ranked& ranked, const Facts& facts, const std::string& run);

}  // namespace telens::analysis
