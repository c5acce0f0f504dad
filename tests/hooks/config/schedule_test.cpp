#include "hooks/config/schedule.h"

#include <gmock/gmock.h>

#include <limits>

#include "hooks/config/yaml_reader.h"

namespace telens::config {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::int64_t kSteps = 30;

Schedule parse(std::string_view yaml, ErrorList& errors) {
  return parse_schedule(read_yaml(yaml, "f.yaml", errors), errors);
}

Schedule parse(std::string_view yaml) {
  ErrorList errors;
  const Schedule schedule = parse(yaml, errors);
  EXPECT_EQ(errors.text(), "");
  return schedule;
}

std::string get_error(std::string_view yaml) {
  ErrorList errors;
  parse(yaml, errors);
  return errors.text();
}

std::vector<std::int64_t> due_steps(const Schedule& schedule) {
  std::vector<std::int64_t> due;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    if (schedule.due(step)) due.push_back(step);
  }
  return due;
}

TEST(Schedule, default_runs_in_every_iteration) {
  const Schedule schedule = parse("{}");
  EXPECT_EQ(schedule, Schedule());
  EXPECT_EQ(due_steps(schedule).size(), static_cast<std::size_t>(kSteps));
}

TEST(Schedule, freq_counts_absolute_iterations_and_end_step_is_included) {
  EXPECT_THAT(due_steps(parse("{freq: 5, start_step: 3, end_step: 20}")),
              ElementsAre(5, 10, 15, 20));
}

TEST(Schedule, minus_one_and_null_mean_endless) {
  EXPECT_EQ(parse("{end_step: -1}"), Schedule());
  EXPECT_EQ(parse("{end_step: null}"), Schedule());
  EXPECT_THAT(due_steps(parse("{freq: 10, start_end_list: [[11, -1]]}")), ElementsAre(20));
}

TEST(Schedule, a_list_replaces_start_and_end_and_includes_both_of_a_pair) {
  EXPECT_THAT(due_steps(parse("{start_step: 25, start_end_list: [[0, 2], [8, 9]]}")),
              ElementsAre(0, 1, 2, 8, 9));
}

TEST(Schedule, an_empty_list_replaces_nothing) {
  EXPECT_EQ(parse("{start_end_list: [], end_step: 3}"), parse("{end_step: 3}"));
  EXPECT_EQ(parse("{start_end_list: null, end_step: 3}"), parse("{end_step: 3}"));
}

TEST(Schedule, an_end_before_the_start_is_never_due) {
  const Schedule schedule = parse("{start_step: 5, end_step: 4}");
  EXPECT_THAT(due_steps(schedule), IsEmpty());
  EXPECT_EQ(schedule.next_due_after(0), std::nullopt);
}

TEST(Schedule, next_due_is_the_first_due_iteration_after_the_given_one) {
  for (const char* yaml :
       {"{}", "{freq: 4}", "{freq: 3, start_step: 7, end_step: 20}",
        "{freq: 2, start_end_list: [[15, 19], [1, 5]]}", "{start_end_list: [[3, 3], [3, 6]]}"}) {
    const Schedule schedule = parse(yaml);
    for (std::int64_t step = -2; step < kSteps; ++step) {
      std::optional<std::int64_t> expected;
      for (std::int64_t next = std::max<std::int64_t>(step + 1, 0); next < 2 * kSteps; ++next) {
        if (schedule.due(next)) {
          expected = next;
          break;
        }
      }
      EXPECT_EQ(schedule.next_due_after(step), expected) << yaml << " after " << step;
    }
  }
}

TEST(Schedule, always_due_starts_after_the_last_skipped_iteration) {
  EXPECT_TRUE(parse("{}").always_due_from(0));
  EXPECT_FALSE(parse("{freq: 2}").always_due_from(2));
  EXPECT_FALSE(parse("{end_step: 9}").always_due_from(3));
  EXPECT_FALSE(parse("{start_step: 4}").always_due_from(3));
  EXPECT_TRUE(parse("{start_step: 4}").always_due_from(4));
  const Schedule joined = parse("{start_end_list: [[10, -1], [0, 4], [3, 9]]}");
  EXPECT_TRUE(joined.always_due_from(0));
  EXPECT_FALSE(parse("{start_end_list: [[0, 4], [6, -1]]}").always_due_from(4));
  EXPECT_TRUE(parse("{start_end_list: [[0, 4], [6, -1]]}").always_due_from(6));
  EXPECT_TRUE(parse("{end_step: 9223372036854775807}").always_due_from(5));
}

TEST(Schedule, the_largest_numbers_do_not_overflow) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(Schedule().next_due_after(kLargest), std::nullopt);
  EXPECT_EQ(Schedule().next_due_after(kLargest - 1), kLargest);
  EXPECT_EQ(Schedule(2, {{kLargest, std::nullopt}}).next_due_after(0), std::nullopt);
  EXPECT_EQ(Schedule(kLargest - 1, {StepRange{}}).next_due_after(1), kLargest - 1);
  EXPECT_EQ(Schedule(kLargest - 1, {StepRange{}}).next_due_after(kLargest - 1), std::nullopt);
}

TEST(Schedule, wrong_values_are_errors_with_their_place) {
  EXPECT_EQ(get_error("{freq: 0}"),
            "f.yaml:1:8: 'freq' must be an integer of at least 1, not the number 0");
  EXPECT_EQ(get_error("{freq: 2.5}"),
            "f.yaml:1:8: 'freq' must be an integer of at least 1, not the number 2.5");
  EXPECT_EQ(get_error("{freq: True}"),
            "f.yaml:1:8: 'freq' must be an integer of at least 1, not the boolean true");
  EXPECT_EQ(get_error("{start_step: null}"),
            "f.yaml:1:14: 'start_step' must be an integer, not nothing (null)");
  EXPECT_EQ(get_error("{end_step: -2}"),
            "f.yaml:1:12: 'end_step' must be an iteration, or -1 or null for no end, not the "
            "number -2");
  EXPECT_EQ(get_error("{start_end_list: 3}"),
            "f.yaml:1:18: 'start_end_list' must be a list of pairs [first, last], for example "
            "[[0, 20], [80, 100]], not the number 3");
  EXPECT_EQ(get_error("{start_end_list: [[1]]}"),
            "f.yaml:1:19: an item of 'start_end_list' must be a pair [first, last], not the list "
            "[1]");
}

TEST(Schedule, that_is_thinned_is_due_in_every_so_many_of_its_iterations) {
  const Schedule schedule(3, {{.first = 5, .last = 40}});
  EXPECT_TRUE(schedule.due(6));
  EXPECT_FALSE(schedule.due(6, 4));
  EXPECT_TRUE(schedule.due(12, 4));
  EXPECT_EQ(schedule.next_due_after(12, 4), 24);
  EXPECT_EQ(schedule.next_due_after(36, 4), std::nullopt);
  EXPECT_TRUE(Schedule().always_due_from(0));
  EXPECT_FALSE(Schedule().always_due_from(0, 2));
}

}  // namespace
}  // namespace telens::config
