#include "hooks/statistics/histogram_name.h"

#include <array>

namespace telens {
namespace {

struct BinsName {
  HistogramBins bins;
  std::string_view prefix;
};
constexpr std::array<BinsName, 2> kBins{
    {{HistogramBins::exponent, "exponent_histogram_"}, {HistogramBins::codes, "code_histogram_"}}};

struct FormatName {
  FormatId format;
  std::string_view suffix;
};
constexpr std::array<FormatName, 3> kFormats{
    {{FormatId::bf16, "bf16"}, {FormatId::fp16, "fp16"}, {FormatId::fp32, "fp32"}}};

}  // namespace

std::string format_histogram_name(const HistogramName& name) {
  std::string text;
  for (const auto& [bins, prefix] : kBins) {
    if (bins == name.bins) text += prefix;
  }
  for (const auto& [format, suffix] : kFormats) {
    if (format == name.format) text += suffix;
  }
  return text;
}

std::optional<HistogramName> parse_histogram_name(std::string_view text) {
  for (const auto& [bins, prefix] : kBins) {
    if (!text.starts_with(prefix)) continue;
    for (const auto& [format, suffix] : kFormats) {
      const bool has_codes = bins == HistogramBins::exponent || format != FormatId::fp32;
      if (has_codes && text.substr(prefix.size()) == suffix) return HistogramName{bins, format};
    }
  }
  return std::nullopt;
}

}  // namespace telens
