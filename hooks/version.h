// The version of TELens, and the ELF note in which a plugin stores the versions that it was built
// for. The note is readable without opening the library. No LibTorch.
#pragma once

#define TELENS_VERSION_MAJOR 0
#define TELENS_VERSION_MINOR 1

#define TELENS_TO_STRING_OF(text) #text
#define TELENS_TO_STRING(macro) TELENS_TO_STRING_OF(macro)
#define TELENS_MINOR_VERSION \
  TELENS_TO_STRING(TELENS_VERSION_MAJOR) "." TELENS_TO_STRING(TELENS_VERSION_MINOR)

// Owner "telens", type 1. The description is the minor version of TELens, followed by a space and
// the minor version of torch if the plugin uses LibTorch.
#define TELENS_NOTE(description)              \
  ".pushsection .note.telens, \"a\", %note\n" \
  ".balign 4\n"                               \
  ".long 1f - 0f, 3f - 2f, 1\n"               \
  "0: .asciz \"telens\"\n"                    \
  "1: .balign 4\n"                            \
  "2: .asciz \"" description                  \
  "\"\n"                                      \
  "3: .balign 4\n"                            \
  ".popsection\n"
