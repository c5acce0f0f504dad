// ScheduledObserver (hooks/scheduled_observer.h) for features that see LibTorch's tensors.
#pragma once

#include "hooks/feature.h"
#include "hooks/scheduled_observer.h"

namespace telens {

class TELENS_EXPORT ScheduledFeature : public Scheduled<Feature> {
 protected:
  using Scheduled<Feature>::Scheduled;
};

}  // namespace telens
