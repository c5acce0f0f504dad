#include "hooks/collective_observer.h"

#include <utility>

#include "core/distributed/collective_watch.h"
#include "hooks/libtorch/c10d_group.h"

namespace telens {

struct CollectiveObservation::Watch final : CollectiveWatch {
  explicit Watch(std::shared_ptr<CollectiveObserver> of) : observer(std::move(of)) {}

  OnResult begin(const CollectiveCall& call) override {
    CollectiveObserver::OnResult on_result =
        observer->begin({call.kind, call.sent, to_rank_group(call.group.get()), call.rows});
    if (!on_result) return {};
    return [on_result = std::move(on_result)](const at::Tensor& result) { on_result(result); };
  }

  const std::shared_ptr<CollectiveObserver> observer;
};

CollectiveObservation::CollectiveObservation(std::shared_ptr<CollectiveObserver> observer)
    : watch_(std::make_shared<Watch>(std::move(observer))) {
  collective_watches::add(watch_);
}

CollectiveObservation::~CollectiveObservation() { end(); }

void CollectiveObservation::end() {
  if (!watch_) return;
  collective_watches::remove(watch_);
  watch_.reset();
}

}  // namespace telens
