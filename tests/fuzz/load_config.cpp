// Loads any text as a debug config: it loads or throws ConfigError. A loaded config can be
// resolved.
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "features/builtin_options.h"
#include "hooks/config/config.h"
#include "hooks/config/plan.h"
#include "tests/fuzz/fuzz_target.h"

using namespace telens;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const config::Descriptions known = features::builtin_descriptions();
  static const std::vector<std::string> layers{"Layer_1",
                                               "model.layers.0.self_attention.layernorm_linear_qkv",
                                               "model.layers.3.proj",
                                               "decoder.12.layernorm_mlp.fc1",
                                               "experts.gemm_2",
                                               ""};
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const config::Plan plan =
        config::make_plan(config::load_config_text(text, "fuzz.yaml", known), layers);
    config::estimate_load(plan);
  } catch (const ConfigError&) {
  }
  return 0;
}
