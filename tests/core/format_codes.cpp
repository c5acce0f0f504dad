// Reads FP32 values from the standard input and writes their codes to the standard output, both as
// plain memory:
//   format_codes e5m2 saturating|non_saturating
//   format_codes e8m0 up|floor|nearest
// With it tests/python/test_formats.py compares core/formats with the formats of other libraries.
#include <fmt/format.h>

#include <cstdio>
#include <iterator>
#include <optional>
#include <string_view>
#include <vector>

#include "core/formats/convert.h"
#include "core/formats/dispatch.h"

namespace telens {
namespace {

std::optional<FormatId> format_named(std::string_view name) {
  constexpr std::string_view kNames[] = {"e4m3", "e5m2", "e2m1", "e8m0", "bf16",
                                         "fp16", "fp32", "e3m2", "e2m3"};
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<FormatId>(i);
  }
  return std::nullopt;
}

template <typename Format>
typename Format::Bits encode_as(float value, std::string_view mode) {
  if constexpr (SignedFormat<Format>) {
    return encode<Format>(
        value, mode == "saturating" ? Saturation::saturating : Saturation::non_saturating);
  } else {
    const ScaleRounding rounding = mode == "up"      ? ScaleRounding::up
                                   : mode == "floor" ? ScaleRounding::floor
                                                     : ScaleRounding::nearest;
    return encode<Format>(value, Saturation::non_saturating, rounding);
  }
}

template <typename Format>
void encode_input(std::string_view mode) {
  float value = 0;
  while (std::fread(&value, sizeof(value), 1, stdin) == 1) {
    const auto code = encode_as<Format>(value, mode);
    std::fwrite(&code, sizeof(code), 1, stdout);
  }
}

int run(int argc, char** argv) {
  const auto format = argc == 3 ? format_named(argv[1]) : std::nullopt;
  if (!format) {
    fmt::print(stderr, "usage: format_codes FORMAT MODE < FP32 values > codes\n");
    return 2;
  }
  dispatch_format(*format, [&]<typename Format>() { encode_input<Format>(argv[2]); });
  return 0;
}

}  // namespace
}  // namespace telens

int main(int argc, char** argv) { return telens::run(argc, argv); }
