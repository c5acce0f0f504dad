// The GEMMs that a run did in low precision: what a search may move to high precision.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/names.h"
#include "record/run_reader.h"

namespace telens::cli {

// A GEMM of a layer that ran in low precision, with the casts of its operands.
struct LowGemm {
  Gemm gemm{};
  // The quant_format of FakeQuant that casts the operand likewise; operands in high precision, and
  // casts that FakeQuant does not have, are left out.
  std::map<TensorName, std::string> formats = {};
};

struct Candidate {
  std::string layer;
  std::vector<LowGemm> gemms;  // in the order of Gemm
};

// A section of a debug configuration that has a run record its candidates.
inline constexpr std::string_view kCandidatesSection =
    "bisect_ledger:\n"
    "  enabled: True\n"
    "  layers: {layer_types: [all]}\n"
    "  telens:\n"
    "    PrecisionLedger: {enabled: True}\n";

// From the ledger of the run, in the order in which the layers were first seen.
std::vector<Candidate> candidates_in(const record::RunReader& run);

// The quant_format of FakeQuant for what a ledger says of an operand, as
// "E4M3 under tensor scaling"; nullopt: it has none.
std::optional<std::string> get_quant_format(std::string_view ran);

// The two operands of a GEMM.
std::vector<TensorName> get_operands(Gemm gemm);

}  // namespace telens::cli
