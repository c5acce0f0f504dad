// A plugin that was built for other versions. It must not be opened, which would end the process.
#include "hooks/plugin_versions.h"

#include <cstdlib>

#undef TELENS_MINOR_VERSION
#undef TELENS_TORCH_MINOR_VERSION
#define TELENS_MINOR_VERSION "0.0"
#define TELENS_TORCH_MINOR_VERSION "1.13"
__asm__(TELENS_PLUGIN_NOTE);

namespace {
[[maybe_unused]] const bool opened = (std::abort(), true);
}
