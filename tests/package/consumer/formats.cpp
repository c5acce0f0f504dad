#include <cstdio>

#include "core/base/names.h"
#include "core/formats/convert.h"

int main() {
  using telens::E4M3;
  const auto code = telens::encode<E4M3>(300.0F, telens::Saturation::saturating);
  std::printf("%s 0x%02x %g\n", telens::get_name(telens::Gemm::wgrad).data(), unsigned{code},
              telens::decode<E4M3>(code));
}
