// Diagnosis: runs the rules of telens diagnose repeatedly during a run.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "features/online_diagnosis/finding_board.h"
#include "features/online_diagnosis/look_thread.h"
#include "features/online_diagnosis/online_diagnosis_options.h"
#include "hooks/decisions.h"
#include "hooks/feature_registration.h"
#include "hooks/finding_source.h"

namespace telens::features {

class OnlineDiagnosis final : public Observer, public FindingSource, private Decider {
 public:
  OnlineDiagnosis(const config::FeatureEntry& entry, FeatureServices& services);

  RoutingCalls routing_calls() const override { return RoutingCalls::none(); }
  bool follows_schedules() const override { return true; }
  bool can_be_captured() const override { return true; }
  Decider* decider() override { return options_.may(analysis::Action::veto) ? this : nullptr; }
  void step(std::int64_t iteration) override;
  void end() override;

  // FindingSource
  void begin(std::shared_ptr<Sink> run_file) override;
  std::vector<debug::Finding> findings() const override { return board_->findings(); }
  void listen(debug::FindingListener listener) override { board_->listen(std::move(listener)); }
  void look_now(std::int64_t last, std::chrono::milliseconds wait) override;
  bool allows_checkpoints() const override;
  bool may_veto() const override { return options_.may(analysis::Action::veto); }
  std::exception_ptr take_interruption() override { return board_->take_interruption(); }

  // Time limit for the last look, in which the end of a session waits.
  static constexpr std::chrono::seconds kLongestEnd{5};

 private:
  // Decider
  bool decides(std::int64_t iteration) const override;
  bool looks_at_rows() const override { return false; }
  // Returns the strongest action that is currently required: 0, kVeto or kStop.
  std::int64_t decide(const EndedIteration& ended) override;
  void follow(std::int64_t iteration, std::span<const std::int64_t> wanted) override;

  // Returns false if ranks decide together about findings.
  bool is_alone() const;
  void tell_news(std::int64_t iteration);
  std::string in_words(const analysis::LiveFinding& found) const;

  const config::FeatureEntry& entry_;
  const config::Section& section_;
  FeatureServices& services_;
  const OnlineDiagnosisOptions& options_;  // the options of the entry
  const config::Schedule& schedule_;
  const std::shared_ptr<FindingBoard> board_ = std::make_shared<FindingBoard>();
  std::unique_ptr<LookThread> looks_;
  std::atomic<bool> all_ranks_veto_{false};

  // Used only by step() and end().
  std::optional<std::int64_t> stepped_;  // the last iteration in which the section ran
  std::vector<std::string> stops_;       // texts of findings that ask for a stop, until it comes
};

FeatureRegistration online_diagnosis();

}  // namespace telens::features
