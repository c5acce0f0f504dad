// The names under which histograms are recorded, in the column that has the statistic of other
// records: "exponent_histogram_bf16", "code_histogram_fp16". No LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/formats/format_id.h"

namespace telens {

// The kinds of bins: core/ops/histogram_layout.h.
enum class HistogramBins : std::uint8_t { exponent, codes };

struct HistogramName {
  HistogramBins bins = HistogramBins::exponent;
  FormatId format = FormatId::bf16;  // the tensor's

  friend bool operator==(const HistogramName&, const HistogramName&) = default;
};

std::string format_histogram_name(const HistogramName& name);
std::optional<HistogramName> parse_histogram_name(std::string_view text);

}  // namespace telens
