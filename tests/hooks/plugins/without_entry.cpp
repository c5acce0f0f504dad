// A library with the ELF note of a plugin, but without the entry function.
#include "hooks/plugin_versions.h"

__asm__(TELENS_PLUGIN_NOTE);
