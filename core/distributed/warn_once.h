// Warnings to the user outside of sessions.
#pragma once

#include <string_view>

namespace telens {

// first_rank: only one of the ranks that torchrun started prints.
enum class ShownBy { first_rank, this_rank };

// Prints one line on stderr, once per text and process, or each time under
// torch.set_warn_always(True). Thread-safe.
void warn_once(std::string_view text, ShownBy shown_by = ShownBy::first_rank);

}  // namespace telens
