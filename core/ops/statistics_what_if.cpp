#include "core/ops/statistics_what_if.h"

#include <torch/library.h>

#include <vector>

#include "core/ops/block_quantize_checks.h"
#include "core/ops/checks.h"
#include "core/ops/dispatcher.h"
#include "core/ops/statistics_checks.h"
#include "core/ops/statistics_layout.h"

namespace telens::ops {
namespace {

constexpr const char* kWhatIf = "accumulate_what_if_statistics";

void what_if_statistics_meta(const at::Tensor& x, at::IntArrayRef formats, at::IntArrayRef modes,
                             at::IntArrayRef squares, at::IntArrayRef columnwise,
                             at::TensorList accumulators) {
  check_what_if_statistics(x, {formats, modes, squares, columnwise}, accumulators);
}

WhatIfCast check_cast(std::int64_t format, std::int64_t mode) {
  const auto scaling = check_block_mode(kWhatIf, mode);
  return {check_element_format(kWhatIf, format, scaling), scaling};
}

}  // namespace

std::vector<WhatIfCast> check_what_if_statistics(const at::Tensor& x, const WhatIfArguments& casts,
                                                 at::TensorList accumulators) {
  check_matrix(kWhatIf, x);
  const std::size_t count = accumulators.size();
  if (casts.formats.size() != count || casts.modes.size() != count ||
      casts.squares.size() != count || casts.columnwise.size() != count) {
    raise<UsageError>(
        "{}: {} formats, {} modes, {} squares, {} columnwise and {} accumulators; expected one of "
        "each a cast",
        kWhatIf, casts.formats.size(), casts.modes.size(), casts.squares.size(),
        casts.columnwise.size(), count);
  }
  std::vector<WhatIfCast> checked;
  for (std::size_t i = 0; i < count; ++i) {
    WhatIfCast cast = check_cast(casts.formats[i], casts.modes[i]);
    cast.squares = casts.squares[i] != 0 || cast.mode == ScalingMode::block_2d;
    cast.columnwise = casts.columnwise[i] != 0;
    check_accumulator(kWhatIf, x, accumulators[i], kCastSumsWords);
    checked.push_back(cast);
  }
  return checked;
}

void accumulate_what_if_statistics(const at::Tensor& x, std::span<const WhatIfCast> casts,
                                   at::TensorList accumulators) {
  static const auto op =
      find_operator<decltype(what_if_statistics_meta)>("telens::accumulate_what_if_statistics");
  std::vector<std::int64_t> formats, modes, squares, columnwise;
  for (const WhatIfCast& cast : casts) {
    formats.push_back(static_cast<std::int64_t>(cast.format));
    modes.push_back(static_cast<std::int64_t>(cast.mode));
    squares.push_back(cast.squares ? 1 : 0);
    columnwise.push_back(cast.columnwise ? 1 : 0);
  }
  op.call(x, formats, modes, squares, columnwise, accumulators);
}

}  // namespace telens::ops

TORCH_LIBRARY_IMPL(telens, Meta, library) {
  library.impl("accumulate_what_if_statistics", TORCH_FN(telens::ops::what_if_statistics_meta));
}
