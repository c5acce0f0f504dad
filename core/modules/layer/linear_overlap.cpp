#include "core/modules/layer/linear_overlap.h"

#include <algorithm>
#include <utility>

#include "core/distributed/compare_ranks.h"
#include "core/modules/layer/linear_parallel.h"

namespace telens {
namespace {

constexpr std::string_view in_words(OverlapKind kind) {
  switch (kind) {
    case OverlapKind::none:
      break;
    case OverlapKind::gather:
      return "a gather of its operand";
    case OverlapKind::scatter:
      return "a reduce-scatter of its result";
    case OverlapKind::beside:
      return "a collective beside it";
  }
  return "nothing";
}

// The argument that asks for it.
const char* get_argument(Gemm gemm, OverlapKind kind, const LinearParallel& parallel) {
  if (kind == OverlapKind::gather) return "ub_overlap_ag";
  if (kind == OverlapKind::scatter) {
    return parallel.mode == ParallelMode::row ? "ub_overlap_rs" : "ub_overlap_rs_dgrad";
  }
  if (parallel.mode == ParallelMode::row) return "ub_overlap_ag";
  return gemm == Gemm::dgrad ? "ub_bulk_dgrad" : "ub_bulk_wgrad";
}

// Throws where the settings of a GEMM are about something else than the layer does.
void check_fits(const char* module, const std::string& ub_name, Gemm gemm, OverlapKind kind,
                const LinearParallel& parallel, const OverlapSettings& settings) {
  const bool cuts =
      settings.method == OverlapMethod::ring_exchange || settings.method == OverlapMethod::pipeline;
  const bool fits = kind == OverlapKind::beside
                        ? !cuts
                        : cuts && settings.is_reduce_scatter == (kind == OverlapKind::scatter);
  if (fits) return;
  const char* mend =
      "give the layer the ub_name of such a layer: qkv and fc1 are column layers, "
      "proj and fc2 row layers";
  if (parallel.mode == ParallelMode::column && gemm == Gemm::dgrad) {
    mend =
        kind == OverlapKind::scatter
            ? "give it the method ring_exchange or pipeline in ub_cfgs, or leave the argument out"
            : "leave that method out of ub_cfgs, or use ub_overlap_rs_dgrad instead";
  }
  raise<UsageError>("{}: {}=True asks {}_{} for {}, and initialize_ub has set it to {} ({}); {}",
                    module, get_argument(gemm, kind, parallel), ub_name, get_name(gemm),
                    in_words(kind), get_name(settings.method),
                    settings.is_reduce_scatter ? "reduce-scatter" : "all-gather", mend);
}

}  // namespace

std::shared_ptr<const LinearOverlap> LinearOverlap::make(const char* module,
                                                         const OverlapSwitches& switches,
                                                         const LinearParallel& parallel) {
  if (!parallel.gathers_operands()) return nullptr;
  LinearOverlap made;
  const auto ask = [&](Gemm gemm, bool asked, OverlapKind kind) {
    if (asked) made.kind(gemm) = kind;
  };
  if (parallel.mode == ParallelMode::column) {
    ask(Gemm::fprop, switches.ag, OverlapKind::gather);
    ask(Gemm::dgrad, switches.bulk_dgrad, OverlapKind::beside);
    ask(Gemm::dgrad, switches.rs_dgrad, OverlapKind::scatter);
    ask(Gemm::wgrad, switches.bulk_wgrad && !switches.rs_dgrad, OverlapKind::beside);
  } else {
    ask(Gemm::fprop, switches.rs, OverlapKind::scatter);
    ask(Gemm::dgrad, switches.ag, OverlapKind::gather);
    ask(Gemm::wgrad, switches.ag, OverlapKind::beside);
  }
  if (std::ranges::count(made.kinds_, OverlapKind::none) == 3) return nullptr;

  const std::shared_ptr<const Userbuffers> buffers = userbuffers();
  if (!buffers) {
    raise<UsageError>(
        "{}: ub_* arguments overlap communication with GEMMs; call initialize_ub before the layer "
        "is made",
        module);
  }
  if (!is_ub_name(switches.name)) {
    raise<UsageError>("{}: ub_name is {}; expected qkv, proj, fc1 or fc2 for a layer that overlaps",
                      module, switches.name.empty() ? "None" : fmt::format("'{}'", switches.name));
  }
  if (buffers->tp_size != parallel.size) {
    raise<UsageError>("{}: tp_size is {}, and initialize_ub was told of {}; give both the same",
                      module, parallel.size, buffers->tp_size);
  }
  made.name_ = switches.name;
  made.words_ = fmt::format("has the ub_name {}", switches.name);
  for (const Gemm gemm : kAllGemms) {
    const OverlapKind kind = made.kind(gemm);
    if (kind == OverlapKind::none) continue;
    for (const bool fp8 : {false, true}) {
      if (const OverlapSettings* settings = buffers->find(switches.name, get_name(gemm), fp8)) {
        check_fits(module, switches.name, gemm, kind, parallel, *settings);
      }
    }
    made.words_ += fmt::format(", overlaps {} with {}", get_name(gemm), in_words(kind));
  }
  return std::make_shared<const LinearOverlap>(std::move(made));
}

std::optional<OverlapSettings> LinearOverlap::settings(Gemm gemm, bool fp8,
                                                       const std::string& layer) const {
  if (kind(gemm) == OverlapKind::none) return std::nullopt;
  const std::shared_ptr<const Userbuffers> buffers = userbuffers();
  if (!buffers) {
    raise<UsageError>(
        "{}: {}_{} is to overlap, and destroy_ub has been called since the layer was made; call "
        "initialize_ub again",
        layer, name_, get_name(gemm));
  }
  const OverlapSettings* found = buffers->find(name_, get_name(gemm), fp8);
  if (found == nullptr) {
    raise<UsageError>(
        "{}: {}_{} is to overlap {}, which initialize_ub was not told of; add "
        "UserBufferQuantizationMode.{} to its quantization_modes",
        layer, name_, get_name(gemm), fp8 ? "under a recipe" : "in high precision",
        fp8 ? "FP8" : "NONE");
  }
  return *found;
}

void LinearOverlap::compare(const std::string& layer, const ProcessGroupPtr& group) const {
  compare_over_ranks(
      {.subject = layer,
       .group_name = "tp_group",
       .text = words_,
       .mend = "the messages of one rank are for the others: make the layer with the same ub_* "
               "arguments on all of them"},
      group);
}

}  // namespace telens
