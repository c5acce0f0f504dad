#include "features/builtin_options.h"

#include "features/disable_fp8_options.h"
#include "features/fake_quant_options.h"
#include "features/log_fp8_tensor_stats_options.h"
#include "features/log_tensor_stats_options.h"

namespace telens::features {

config::Descriptions builtin_descriptions() {
  config::Descriptions descriptions;
  descriptions.add(log_tensor_stats_description());
  descriptions.add(log_fp8_tensor_stats_description());
  descriptions.add(fake_quant_description());
  descriptions.add(disable_fp8_gemm_description());
  descriptions.add(disable_fp8_layer_description());
  descriptions.add(base_log_tensor_stats_description());
  return descriptions;
}

}  // namespace telens::features
