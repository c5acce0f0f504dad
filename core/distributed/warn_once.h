// Warnings to the user that belong to no session.
#pragma once

#include <string_view>

namespace telens {

// first_rank: the ranks that torchrun started all say the same.
enum class ShownBy { first_rank, this_rank };

// One plain line on stderr, once for each text and process; each time under
// torch.set_warn_always(True). Any thread.
void warn_once(std::string_view text, ShownBy shown_by = ShownBy::first_rank);

}  // namespace telens
