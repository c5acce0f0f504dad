#include "hooks/stream_order.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

namespace telens {

c10::Stream current_stream(const at::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void wait_for(const c10::Stream& stream) {
  const c10::Stream current = current_stream(stream.device());
  if (current == stream) return;
  c10::Event reached(stream.device_type());
  reached.record(stream);
  reached.block(current);
}

void StreamSet::add(const at::Device& device) {
  const c10::Stream stream = current_stream(device);
  if (std::ranges::find(streams_, stream) == streams_.end()) streams_.push_back(stream);
}

void StreamSet::join() {
  for (const c10::Stream& stream : std::exchange(streams_, {})) wait_for(stream);
}

}  // namespace telens
