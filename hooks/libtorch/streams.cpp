#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "core/torch_compat.h"
#include "hooks/stream_order.h"

namespace telens {

StreamHandle current_stream(DeviceId device) {
  const c10::Device of = to_torch(device);
  return to_handle(c10::impl::VirtualGuardImpl(of.type()).getStream(of));
}

void wait_for(const StreamHandle& stream) {
  if (current_stream(stream.device) == stream) return;
  const c10::Stream of = to_torch(stream);
  c10::Event reached(of.device_type());
  reached.record(of);
  reached.block(to_torch(current_stream(stream.device)));
}

void StreamSet::add(DeviceId device) {
  const StreamHandle stream = current_stream(device);
  if (std::ranges::find(streams_, stream) == streams_.end()) streams_.push_back(stream);
}

void StreamSet::join() {
  for (const StreamHandle& stream : std::exchange(streams_, {})) wait_for(stream);
}

struct StreamEvent::Impl {
  c10::Event event;
};

StreamEvent::StreamEvent(DeviceId device) : impl_(new Impl{c10::Event(to_torch(device).type())}) {
  impl_->event.record(to_torch(current_stream(device)));
}

StreamEvent::~StreamEvent() = default;

void StreamEvent::synchronize() const { impl_->event.synchronize(); }

}  // namespace telens
