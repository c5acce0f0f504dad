#include "inspector_cli/report/run_state.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

namespace telens::cli {

std::string time_text(double seconds) {
  constexpr double kYear10000 = 253402300800;
  if (!(seconds >= 0 && seconds < kYear10000)) return "at an unknown time";
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

RunState state_of(const record::Segment& segment) {
  if (!segment.end) {
    if (segment.live) return {"being written", Colour::green};
    return {"not closed (killed?); `telens repair` closes it", Colour::yellow};
  }
  const record::RunEnd& end = *segment.end;
  switch (end.state) {
    case record::End::clean:
      return {"ended cleanly " + time_text(end.time)};
    case record::End::killed:
      return {"killed, repaired", Colour::yellow};
    case record::End::exception:
      return {fmt::format("ended by an exception {}: {}", time_text(end.time), end.reason),
              Colour::red};
    case record::End::failed:
      break;
  }
  return {fmt::format("recording stopped {}: {}", time_text(end.time), end.reason), Colour::red};
}

RunState state_of(const record::RunReader& run) {
  const auto& segments = run.segments();
  if (segments.empty()) return {};
  const auto live = std::ranges::find_if(segments, &record::Segment::live);
  return state_of(live == segments.end() ? segments.back() : *live);
}

std::string state_text(const record::Segment& segment) {
  const RunState state = state_of(segment);
  return state.colour ? coloured(state.text, *state.colour) : state.text;
}

}  // namespace telens::cli
