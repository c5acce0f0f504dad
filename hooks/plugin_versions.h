// The versions that a plugin with LibTorch is built for.
#pragma once

#include <torch/version.h>

#include "hooks/version.h"

#define TELENS_TORCH_MINOR_VERSION \
  TELENS_TO_STRING(TORCH_VERSION_MAJOR) "." TELENS_TO_STRING(TORCH_VERSION_MINOR)

#define TELENS_PLUGIN_NOTE TELENS_NOTE(TELENS_MINOR_VERSION " " TELENS_TORCH_MINOR_VERSION)
