// The overlaps that one divided layer has asked for (overlap_switches.h), by GEMM.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "core/base/names.h"
#include "core/distributed/process_group.h"
#include "core/distributed/userbuffers.h"
#include "core/modules/layer/overlap_switches.h"

namespace telens {

struct LinearParallel;

// The kinds of overlaps of a GEMM.
enum class OverlapKind : std::uint8_t {
  none,
  gather,   // its left operand's rows come from all ranks
  scatter,  // its product is a part of a sum over ranks, of which each gets its rows
  beside,   // a collective that it does not need
};

class LinearOverlap {
 public:
  // nullptr where no switch counts: they are those of layers whose sequence is divided. Throws
  // UsageError where initialize_ub has not been called, or with other names, methods and sizes.
  static std::shared_ptr<const LinearOverlap> make(const char* module,
                                                   const OverlapSwitches& switches,
                                                   const LinearParallel& parallel);

  // nullopt: the GEMM overlaps with nothing. Throws UsageError where Userbuffers have gone since,
  // or know nothing of this precision.
  std::optional<OverlapSettings> settings(Gemm gemm, bool fp8, const std::string& layer) const;

  OverlapKind kind(Gemm gemm) const { return kinds_[static_cast<std::size_t>(gemm)]; }

  // All ranks of the group must have asked for the same. Throws UsageError where they have not.
  void compare(const std::string& layer, const ProcessGroupPtr& group) const;

 private:
  OverlapKind& kind(Gemm gemm) { return kinds_[static_cast<std::size_t>(gemm)]; }

  std::string name_;
  std::array<OverlapKind, 3> kinds_{};
  std::string words_;  // compared over ranks
};

}  // namespace telens
