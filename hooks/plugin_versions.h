// The versions that a plugin is built for, as an ELF note that is readable without opening the
// library.
#pragma once

#include <torch/version.h>

#define TELENS_VERSION_MAJOR 0
#define TELENS_VERSION_MINOR 1

#define TELENS_TO_STRING_OF(text) #text
#define TELENS_TO_STRING(macro) TELENS_TO_STRING_OF(macro)
#define TELENS_MINOR_VERSION \
  TELENS_TO_STRING(TELENS_VERSION_MAJOR) "." TELENS_TO_STRING(TELENS_VERSION_MINOR)
#define TELENS_TORCH_MINOR_VERSION \
  TELENS_TO_STRING(TORCH_VERSION_MAJOR) "." TELENS_TO_STRING(TORCH_VERSION_MINOR)

// Owner "telens", type 1; the description is "<telens> <torch>", two minor versions.
#define TELENS_PLUGIN_NOTE                                           \
  ".pushsection .note.telens, \"a\", %note\n"                        \
  ".balign 4\n"                                                      \
  ".long 1f - 0f, 3f - 2f, 1\n"                                      \
  "0: .asciz \"telens\"\n"                                           \
  "1: .balign 4\n"                                                   \
  "2: .asciz \"" TELENS_MINOR_VERSION " " TELENS_TORCH_MINOR_VERSION \
  "\"\n"                                                             \
  "3: .balign 4\n"                                                   \
  ".popsection\n"
