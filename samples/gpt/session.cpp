#include "session.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "hooks/debug.h"

namespace gpt {
namespace {

// The path names the first file, or its folder if the session could not write a file. In that case
// it printed a warning and training continued.
bool has_recorded(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

}  // namespace

Session::Session(const SessionOptions& options, const Ranks& ranks)
    : on_(!options.config.empty()), ranks_(ranks) {
  if (!on_) return;
  telens::debug::initialize({.config_file = options.config,
                             .log_dir = options.log_dir,
                             .init_training_step = options.first_step,
                             .rank = static_cast<int>(ranks.place().rank),
                             .world_size = static_cast<int>(ranks.place().ranks),
                             .world = ranks.world()});
  if (const auto wait = telens::debug::longest_wait_for_ranks()) {
    telens::debug::compare_ranks_over(ranks.group_for_comparisons(*wait));
  }
}

Session::~Session() {
  if (!on_) return;
  const std::string path = telens::debug::run_path();
  telens::debug::end_debug();
  if (!ranks_.is_first()) return;
  fmt::print("{} in {}\n", has_recorded(path) ? "recorded" : "nothing could be recorded", path);
}

}  // namespace gpt
