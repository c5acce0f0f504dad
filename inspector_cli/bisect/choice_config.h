// The GEMMs that a search keeps in high precision in one run, and the configuration that says so.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "core/base/names.h"

namespace telens::cli {

// One operand of a GEMM that is cast, while the GEMM runs in high precision.
struct CastOperand {
  std::string layer;
  Gemm gemm{};
  TensorName tensor{};
  std::string format;  // FakeQuant's quant_format
};

struct Choice {
  std::map<std::string, std::set<Gemm>> high = {};  // by layer; all else runs as the program asks
  std::optional<CastOperand> cast = std::nullopt;   // its GEMM is not among `high`
};

// Sections of a debug configuration in YAML; "" for a choice of nothing. Layers with the same GEMMs
// share a section.
std::string get_sections(const Choice& choice);

// "3 of 200 layers", "layers.3.fc1 (fprop, dgrad) and 2 more".
std::string short_text(const Choice& choice);

// "layers.3.fc1 fprop", printable.
std::string make_label(const std::string& layer, Gemm gemm);

}  // namespace telens::cli
