// LiveLook applies the rules to a growing run and reports each finding once.
#include "analysis/live_look.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "analysis/findings.h"
#include "analysis/rules.h"
#include "tests/record/record_fixture.h"

namespace telens::analysis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A run that is being written, of outputs of layers with and without non-finite elements.
class LiveLookTest : public ::testing::Test {
 protected:
  void put(std::int64_t iteration, const std::string& layer, const std::string& tensor,
           const std::string& statistic, double value) {
    using record::Dictionary;
    const record::Record row{.iteration = iteration,
                             .layer = writer_->intern(Dictionary::layer, layer),
                             .tensor = writer_->intern(Dictionary::tensor, tensor),
                             .gemm = record::kNoName,
                             .statistic = writer_->intern(Dictionary::statistic, statistic),
                             .scope = record::kNoName,
                             .value = value};
    writer_->push(std::span(&row, 1));
  }
  // Records an iteration with this number of non-finite elements in a layer's output.
  void iteration(std::int64_t number, double bad_in_fc1, double bad_in_fc2 = 0) {
    put(number, "fc1", "output", "nonfinite", bad_in_fc1);
    put(number, "fc2", "output", "nonfinite", bad_in_fc2);
    writer_->flush();
  }
  // The same, and a cast of fc1's activation that clips.
  void clipping_iteration(std::int64_t number, double bad_in_fc1) {
    put(number, "fc1", "activation", "stale_saturated%", 50);
    put(number, "fc1", "activation", "scale_headroom", -2);
    iteration(number, bad_in_fc1);
  }

  LiveLookOptions options() const {
    return {.path = folder_.str(),
            .run = "RUN",
            .get_action =
                [this](std::string_view cause) {
                  const auto found = actions_.find(std::string(cause));
                  return found == actions_.end() ? Action::tell : found->second;
                },
            .selects = [](const std::string&) { return true; }};
  }

  // The findings of one look, as "cause layer first".
  static std::vector<std::string> in_short(const LiveFindings& seen) {
    std::vector<std::string> texts;
    for (const LiveFinding& each : seen.found) {
      texts.push_back(fmt::format("{} {} {}", each.cause, each.layer, each.first));
    }
    return texts;
  }

  record::TemporaryFolder folder_;
  std::unique_ptr<record::RunWriter> writer_ =
      record::RunWriter::open(record::options_in(folder_, "run"));
  std::map<std::string, Action> actions_;
};

TEST_F(LiveLookTest, reports_findings_once_like_the_command) {
  LiveLook live(options());
  for (std::int64_t i = 0; i < 3; ++i) iteration(i, 0);
  EXPECT_THAT(live.look({}).found, IsEmpty());
  for (std::int64_t i = 3; i < 6; ++i) iteration(i, 7);
  const LiveFindings seen = live.look({});
  EXPECT_THAT(in_short(seen), ElementsAre("nonfinite fc1 3"));
  EXPECT_EQ(seen.found[0].action, Action::tell);
  EXPECT_THAT(seen.found[0].text, HasSubstr("nonfinite: fc1 output fprop, iterations 3 to 5: "));
  EXPECT_THAT(seen.found[0].text, HasSubstr("; next: telens stats RUN "));
  const record::RunReader run(folder_.str());
  const Facts facts(run, statistics_of_rules());
  const Json all = Json::parse(diagnosis_json(diagnose(facts), facts, "RUN"));
  EXPECT_EQ(Json::parse(seen.found[0].json), all["findings"][0]);
  iteration(6, 7);
  EXPECT_THAT(live.look({}).found, IsEmpty());
}

TEST_F(LiveLookTest, reports_after_the_iteration_that_follows_the_start) {
  LiveLook live(options());
  actions_["nonfinite"] = Action::veto;
  iteration(0, 0);
  iteration(1, 7);
  const LiveFindings seen = live.look({});
  EXPECT_THAT(seen.found, IsEmpty());
  EXPECT_TRUE(seen.vetoes);  // vetoed at once: a skipped checkpoint costs less than a bad one
  EXPECT_THAT(live.look({.last = 0}).found, IsEmpty());
  EXPECT_FALSE(live.look({.last = 0}).vetoes);
  iteration(2, 7);
  EXPECT_THAT(live.look({}).found, SizeIs(1));
}

TEST_F(LiveLookTest, waits_for_nothing_at_the_end) {
  LiveLook live(options());
  iteration(0, 0);
  iteration(1, 7);
  EXPECT_THAT(in_short(live.look({.at_end = true})), ElementsAre("nonfinite fc1 1"));
}

TEST_F(LiveLookTest, reads_no_iteration_that_is_under_way) {
  LiveLook live(options());
  for (std::int64_t i = 0; i < 6; ++i) iteration(i, i < 3 ? 0 : 7);
  EXPECT_THAT(live.look({.last = 2, .at_end = true}).found, IsEmpty());
  EXPECT_THAT(live.look({.last = 4}).found, SizeIs(1));
}

TEST_F(LiveLookTest, ignores_problems_that_ended_before_the_session) {
  LiveLook live(options());
  for (std::int64_t i = 0; i < 6; ++i) iteration(i, 7);
  EXPECT_THAT(live.look({.since = 6}).found, IsEmpty());
  EXPECT_THAT(live.look({.since = 5}).found, SizeIs(1));
}

TEST_F(LiveLookTest, reports_only_layers_in_its_section) {
  LiveLookOptions only = options();
  only.selects = [](const std::string& layer) { return layer != "fc1"; };
  LiveLook live(only);
  for (std::int64_t i = 0; i < 6; ++i) iteration(i, 7);
  EXPECT_THAT(live.look({}).found, IsEmpty());
}

TEST_F(LiveLookTest, skips_causes_in_its_ignore_list) {
  LiveLook live(options());
  actions_["nonfinite"] = Action::ignore;
  for (std::int64_t i = 0; i < 6; ++i) iteration(i, 7);
  const LiveFindings seen = live.look({});
  EXPECT_THAT(seen.found, IsEmpty());
  EXPECT_FALSE(seen.vetoes);
}

TEST_F(LiveLookTest, reports_again_if_a_consequence_requires_an_action) {
  LiveLook live(options());
  actions_["overflow"] = Action::stop;
  for (std::int64_t i = 0; i < 3; ++i) clipping_iteration(i, i < 1 ? 0 : 7);
  LiveFindings seen = live.look({});
  EXPECT_THAT(in_short(seen), ElementsAre("nonfinite fc1 1"));
  EXPECT_EQ(seen.found[0].action, Action::tell);
  for (std::int64_t i = 3; i < 9; ++i) clipping_iteration(i, 7);
  seen = live.look({});
  ASSERT_THAT(seen.found, SizeIs(1));
  EXPECT_EQ(seen.found[0].action, Action::stop);
  EXPECT_TRUE(seen.vetoes);
  EXPECT_THAT(live.look({}).found, IsEmpty());
}

TEST_F(LiveLookTest, reads_only_the_end_of_a_long_run_and_skips_old_problems) {
  LiveLookOptions some = options();
  some.most_records = 20;  // ten iterations
  LiveLook late(some);
  for (std::int64_t i = 0; i < 40; ++i) iteration(i, i < 5 ? 0 : 7);
  EXPECT_THAT(late.look({}).found, IsEmpty());
  LiveLook whole(options());
  EXPECT_THAT(in_short(whole.look({})), ElementsAre("nonfinite fc1 5"));
}

TEST_F(LiveLookTest, finds_new_problems_at_the_end_of_a_long_run) {
  LiveLookOptions some = options();
  some.most_records = 20;
  LiveLook live(some);
  for (std::int64_t i = 0; i < 40; ++i) iteration(i, i < 36 ? 0 : 7);
  EXPECT_THAT(in_short(live.look({})), ElementsAre("nonfinite fc1 36"));
}

}  // namespace
}  // namespace telens::analysis
