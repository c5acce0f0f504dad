// The GEMMs of a bisection: which ran in low precision, and which a trial keeps in high precision.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/names.h"
#include "record/run_reader.h"

namespace telens::cli {

// A GEMM of a layer that ran in low precision.
struct LowGemm {
  Gemm gemm{};
  // FakeQuant's quant_format for each cast operand. Excludes operands in high precision and casts
  // that FakeQuant does not support.
  std::map<TensorName, std::string> formats = {};
};

// A layer with GEMMs in low precision.
struct Candidate {
  std::string layer;
  std::vector<LowGemm> gemms;  // in the order of Gemm
};

// A section of a debug config that records the candidates of a run.
inline constexpr std::string_view kCandidatesSection =
    "bisect_ledger:\n"
    "  enabled: True\n"
    "  layers: {layer_types: [all]}\n"
    "  telens:\n"
    "    PrecisionLedger: {enabled: True}\n";

// Reads the candidates from the ledger of a run, in the order in which their layers first ran.
std::vector<Candidate> candidates_in(const record::RunReader& run);

// Returns the quant_format of FakeQuant for a ledger entry such as "E4M3 under tensor scaling", or
// nullopt if FakeQuant does not support it.
std::optional<std::string> get_quant_format(std::string_view ran);

// Returns the two operands of a GEMM.
std::vector<TensorName> get_operands(Gemm gemm);

// One operand that is cast although its GEMM runs in high precision.
struct CastOperand {
  std::string layer;
  Gemm gemm{};
  TensorName tensor{};
  std::string format;  // FakeQuant's quant_format
};

// The changes of a trial. All other GEMMs run as the program configures them.
struct Choice {
  std::map<std::string, std::set<Gemm>> high = {};  // in high precision, by layer
  std::optional<CastOperand> cast = std::nullopt;   // its GEMM is not in `high`
};

// Returns the choice as sections of a debug config in YAML, "" if it changes nothing. Layers with
// the same GEMMs share a section.
std::string get_sections(const Choice& choice);

// Returns "3 layers (9 GEMMs) in high precision" or "layers.3.fc1 in high precision: fprop, dgrad".
std::string short_text(const Choice& choice);

// Returns "layers.3.fc1 fprop", printable.
std::string make_label(const std::string& layer, Gemm gemm);

}  // namespace telens::cli
