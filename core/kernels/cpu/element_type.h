// Dispatch from a high-precision format, known at run time, to the C++ type of its elements.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <utility>

#include "core/base/error.h"
#include "core/formats/format_id.h"

namespace telens {

// Calls visitor.operator()<T>(). The caller must have checked the format.
template <typename Visitor>
decltype(auto) dispatch_element_type(FormatId format, Visitor&& visitor) {
  switch (format) {
    case FormatId::bf16:
      return std::forward<Visitor>(visitor).template operator()<c10::BFloat16>();
    case FormatId::fp16:
      return std::forward<Visitor>(visitor).template operator()<c10::Half>();
    case FormatId::fp32:
      return std::forward<Visitor>(visitor).template operator()<float>();
    default:
      raise<UsageError>("format {} is none of BF16, FP16 and FP32", get_name(format));
  }
}

}  // namespace telens
