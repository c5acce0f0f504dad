#include "core/ops/device_traits.h"

#include <ATen/Version.h>
#include <cpuinfo.h>

#include <string_view>

namespace telens::ops {
namespace {

bool find_native_bf16() {
  if (!cpuinfo_initialize()) return false;
  const bool has_instructions = cpuinfo_has_x86_avx512bf16() || cpuinfo_has_x86_amx_bf16();
  const std::string_view selected = at::get_cpu_capability();
  return has_instructions && selected != "DEFAULT" && selected != "AVX2";
}

}  // namespace

bool has_native_bf16() {
  static const bool native = find_native_bf16();
  return native;
}

}  // namespace telens::ops
