// A library with the note of a plugin and without its entry.
#include "hooks/plugin_versions.h"

__asm__(TELENS_PLUGIN_NOTE);
