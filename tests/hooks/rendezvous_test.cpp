// Ranks that begin a session together or without some of them. Each rank is a thread, and they
// share a store.
#include "hooks/rendezvous.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <latch>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/base/error.h"
#include "hooks/libtorch/c10d_group.h"
#include "tests/hooks/thread_ranks.h"

namespace telens {
namespace {

using std::chrono::milliseconds;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr int kRanks = 3;
constexpr milliseconds kShort{500};    // a wait that passes
constexpr milliseconds kLong{60'000};  // a wait that must not pass, even on a busy machine

class RendezvousTest : public ::testing::Test {
 protected:
  RendezvousTest() {
    wait_for_others(kLong);
    for (int rank = 0; rank < kRanks; ++rank) {
      worlds_.push_back(c10::make_intrusive<c10d::ProcessGroup>(store_, rank, kRanks));
    }
  }

  void wait_for_others(milliseconds wait) { store_->setTimeout(wait * 2); }

  // Returns "all" if all ranks came, and otherwise the explanation or the error.
  std::string join(int rank) {
    RendezvousOptions options{.accept = [] {}};
    options.on_wait = [this, rank](const std::string& text) { told_[rank] = text; };
    options.name_run = [this, rank] {
      if (rank == fails_to_name_) throw std::runtime_error("no name");
      return "run of " + std::to_string(rank);
    };
    try {
      presences_[rank] = join_rendezvous(to_rank_group(worlds_[rank].get()), options);
      const Attendance& attendance = presences_[rank];
      return attendance.is_complete ? "all" : attendance.explanation;
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  std::vector<std::string> join_all(const std::vector<int>& ranks) {
    std::vector<std::future<std::string>> calls;
    std::latch are_ready(static_cast<std::ptrdiff_t>(ranks.size()));
    for (const int rank : ranks) {
      presences_[rank] = {};
      told_[rank] = {};
      calls.push_back(std::async(std::launch::async, [this, rank, &are_ready] {
        are_ready.arrive_and_wait();  // a thread may take some time to start
        return join(rank);
      }));
    }
    std::vector<std::string> results;
    for (auto& each : calls) results.push_back(each.get());
    return results;
  }

  void end(int rank) { presences_.at(rank).presence.reset(); }

  c10::intrusive_ptr<c10d::HashStore> store_ = c10::make_intrusive<c10d::HashStore>();
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> worlds_;
  std::map<int, Attendance> presences_ = {{0, {}}, {1, {}}, {2, {}}};
  std::map<int, std::string> told_ = {{0, ""}, {1, ""}, {2, ""}};
  int fails_to_name_ = -1;
};

class MissingRankTest : public RendezvousTest, public ::testing::WithParamInterface<int> {
 protected:
  std::vector<int> others() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank != GetParam()) ranks.push_back(rank);
    }
    return ranks;
  }
};

TEST_P(MissingRankTest, is_named_during_the_wait_and_joins_late) {
  const std::string name = "rank " + std::to_string(GetParam()) + " of 3";
  wait_for_others(kShort);
  EXPECT_THAT(join_all(others()), Each(HasSubstr(name + " had not called it after")));
  const int first = others().front();
  EXPECT_THAT(told_[first], HasSubstr("waits for " + name));
  EXPECT_THAT(told_[others().back()], IsEmpty());
  for (const int rank : others()) {
    EXPECT_THAT(presences_[rank].missing, ElementsAre(GetParam()));
    EXPECT_EQ(presences_[rank].first, first);
    EXPECT_EQ(presences_[rank].run_id, "run of " + std::to_string(first));
  }
  wait_for_others(kLong);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(join(GetParam()), HasSubstr("before this one came"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kLong / 2);
  EXPECT_EQ(presences_[GetParam()].run_id, presences_[first].run_id);
}

TEST_P(MissingRankTest, that_has_skipped_a_session_meets_the_others_in_the_next_one) {
  wait_for_others(kShort);
  EXPECT_THAT(join_all(others()), Each(HasSubstr("had not called")));
  end(others().front());  // one is enough
  wait_for_others(kLong);
  // The rank that skipped a session calls first, so no other rank can have opened the next session
  // before it.
  auto skipped = std::async(std::launch::async, [&] { return join(GetParam()); });
  std::this_thread::sleep_for(kShort / 4);
  EXPECT_THAT(join_all(others()), Each("all"));
  EXPECT_EQ(skipped.get(), "all");
  EXPECT_THAT(join_all({0, 1, 2}), Each("all"));
}

TEST_P(MissingRankTest, that_refuses_ends_the_wait_of_the_others) {
  std::thread refuses([&] {
    std::this_thread::sleep_for(kShort / 4);
    refuse_rendezvous(to_rank_group(worlds_[GetParam()].get()));
  });
  const std::string refused = "rank " + std::to_string(GetParam()) + " refused";
  EXPECT_THAT(join_all(others()), Each(HasSubstr(refused)));
  refuses.join();
  // A refusal that comes after the others have given up is seen as well.
  refuse_rendezvous(to_rank_group(worlds_[GetParam()].get()));
  EXPECT_THAT(join_all(others()), Each(HasSubstr(refused)));
  EXPECT_THAT(join_all({0, 1, 2}), Each("all"));
}

INSTANTIATE_TEST_SUITE_P(Ranks, MissingRankTest, ::testing::Range(0, kRanks));

TEST_F(RendezvousTest, repeated_starts_leave_few_keys_in_the_store) {
  std::int64_t keys = 0;
  for (int session = 0; session < 3; ++session) {
    EXPECT_THAT(join_all({0, 1, 2}), Each("all"));
    if (session == 0) keys = store_->getNumKeys();
  }
  EXPECT_LE(store_->getNumKeys() - keys, 2 * 2);  // the number of ranks, and the decision
  EXPECT_THAT(told_, Each(Pair(::testing::_, IsEmpty())));
}

TEST_F(RendezvousTest, a_refusal_that_no_other_rank_was_there_to_hear_passes) {
  wait_for_others(kShort);
  refuse_rendezvous(to_rank_group(worlds_[1].get()));
  std::this_thread::sleep_for(kShort * 3 / 2);
  EXPECT_THAT(join_all({0, 1, 2}), Each("all"));
}

TEST_P(MissingRankTest, with_a_session_ends_only_the_current_wait) {
  const auto world = to_rank_group(worlds_[GetParam()].get());
  end_wait_of_others(world);  // none waits
  EXPECT_THAT(join_all({0, 1, 2}), Each("all"));
  std::atomic<bool> is_over{false};
  std::thread calls([&] {
    while (!is_over) {
      end_wait_of_others(world);
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  const std::string refused = "rank " + std::to_string(GetParam()) + " refused";
  EXPECT_THAT(join_all(others()), Each(HasSubstr(refused)));
  is_over = true;
  calls.join();
  EXPECT_THAT(join_all({0, 1, 2}), Each("all"));
}

TEST_F(RendezvousTest, error_on_the_deciding_rank_ends_the_wait_of_other_ranks) {
  wait_for_others(kShort);
  fails_to_name_ = 0;
  EXPECT_THAT(join_all({0, 1}), ElementsAre("no name", HasSubstr("rank 0 refused")));
}

TEST_F(RendezvousTest, interrupted_wait_ends_the_wait_of_other_ranks) {
  auto other = std::async(std::launch::async, [&] { return join(1); });
  RendezvousOptions options{.accept = [] {}};
  options.check_interrupt = [] { throw std::runtime_error("interrupted"); };
  EXPECT_THROW(join_rendezvous(to_rank_group(worlds_[0].get()), options), std::runtime_error);
  EXPECT_THAT(other.get(), HasSubstr("rank 0 refused"));
}

TEST_F(RendezvousTest, rank_reports_its_error_even_if_the_store_is_gone) {
  class GoneStore final : public c10d::HashStore {
   public:
    std::int64_t add(const std::string&, std::int64_t) override {
      C10_THROW_ERROR(DistNetworkError, "gone");
    }
  };
  const auto world =
      c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<GoneStore>(), 0, kRanks);
  const RendezvousOptions options{.accept = [] { raise<UsageError>("its own"); }};
  try {
    join_rendezvous(to_rank_group(world.get()), options);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "its own");
  }
}

// A group of two ranks in which the other rank sends what this one sends, with a store whose add()
// fails.
class WorldOfBareStore final : public c10d::ProcessGroup {
 public:
  WorldOfBareStore() : ProcessGroup(c10::make_intrusive<BareStore>(), 0, 2) {}
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions&) override {
    for (at::Tensor& each : outputs[0]) each.copy_(inputs[0]);
    return c10::make_intrusive<Done>();
  }

 private:
  struct BareStore final : c10d::HashStore {
    std::int64_t add(const std::string&, std::int64_t) override {
      throw std::runtime_error("pure virtual");
    }
  };
  struct Done final : c10d::Work {
    bool wait(milliseconds) override { return true; }
  };
};

TEST(RendezvousWithoutStore, asks_the_ranks_in_a_collective) {
  const auto world = c10::make_intrusive<WorldOfBareStore>();
  EXPECT_TRUE(join_rendezvous(to_rank_group(world.get()), {.accept = [] {}}).is_complete);
}

// Ranks that are threads, with a store in memory, and without c10d.
class RendezvousOnThreads : public ::testing::Test {
 protected:
  std::shared_ptr<testing::ThreadGroup> world_of(int rank, milliseconds limit) {
    auto world = std::make_shared<testing::ThreadGroup>(rank, 2, meeting_, "0,1", store_);
    world->limit = limit;
    return world;
  }

  testing::Meeting meeting_{2};
  std::shared_ptr<testing::ThreadStore> store_ = std::make_shared<testing::ThreadStore>(kLong);
};

TEST_F(RendezvousOnThreads, both_ranks_begin_together) {
  auto other = std::async(std::launch::async, [&] {
    return join_rendezvous(world_of(1, kLong), {.accept = [] {}}).is_complete;
  });
  EXPECT_TRUE(join_rendezvous(world_of(0, kLong), {.accept = [] {}}).is_complete);
  EXPECT_TRUE(other.get());
  EXPECT_EQ(meeting_.gathers, 0);  // the store decides
}

TEST_F(RendezvousOnThreads, missing_rank_is_named_after_the_time_limit) {
  const Attendance attendance = join_rendezvous(world_of(0, kShort), {.accept = [] {}});
  EXPECT_THAT(attendance.missing, ElementsAre(1));
  EXPECT_THAT(attendance.explanation, HasSubstr("rank 1 of 2 had not called it after"));
}

}  // namespace
}  // namespace telens
