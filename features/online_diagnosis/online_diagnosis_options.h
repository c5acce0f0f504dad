// Options and description of Diagnosis. No LibTorch.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "analysis/live_look.h"
#include "hooks/config/feature_description.h"

namespace telens::features {

struct OnlineDiagnosisOptions {
  std::map<std::string, analysis::Action, std::less<>> actions;  // by cause
  analysis::Action of_others = analysis::Action::tell;
  double share = 0;  // 0 to 1: the part of the time that looking may take

  analysis::Action get_action(std::string_view cause) const;
  // Returns true if any cause requests this action or a stronger one.
  bool may(analysis::Action action) const;
};

config::FeatureDescription online_diagnosis_description();

}  // namespace telens::features
