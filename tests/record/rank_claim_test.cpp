// Run ids, rank claims, and temporary files of killed processes.
#include "record/claims.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "record/disk_space.h"
#include "record/run_paths.h"
#include "record/run_writer.h"
#include "record/tensor_dump.h"
#include "tests/temporary_folder.h"

namespace telens::record {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Ne;

void touch(const fs::path& path) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << "x";
}

void make_old(const fs::path& path) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1));
}

// Runs `body` in a child that lives until this object is destroyed.
class LivingChild {
 public:
  template <typename Body>
  explicit LivingChild(const Body& body) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    child_ = fork();
    if (child_ == 0) {
      body();
      static_cast<void>(!write(ready[1], "x", 1));
      for (;;) pause();
    }
    close(ready[1]);
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
  }
  ~LivingChild() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  pid_t pid() const { return child_; }

 private:
  pid_t child_ = 0;
};

std::shared_ptr<const RankClaim> opened;  // by a child

TEST(RankClaim, is_exclusive_between_processes) {
  const testing::TemporaryFolder folder;
  const std::string run = run_folder(folder.str(), "run");
  {
    const LivingChild child([&] { opened = RankClaim::take(run, 0); });
    EXPECT_EQ(RankClaim::take(run, 0), nullptr);
    EXPECT_TRUE(RankClaim::take(run, 1)->is_exclusive()) << "of another rank";
  }
  EXPECT_THAT(RankClaim::take(run, 0), Ne(nullptr)) << "it dies with its process";
}

TEST(RankClaim, is_exclusive_within_a_process) {
  const testing::TemporaryFolder folder;
  const std::string run = run_folder(folder.str(), "run");
  auto claim = RankClaim::take(run, 0);
  EXPECT_EQ(RankClaim::take(run, 0), nullptr);
  fs::create_symlink(run, folder.path() / "other name");
  EXPECT_EQ(RankClaim::take((folder.path() / "other name").string(), 0), nullptr);
  EXPECT_NE(RankClaim::take(run, 1), nullptr) << "of another rank";
  {
    // The failed attempt did not affect the first claim.
    const LivingChild child([&] {
      if (RankClaim::take(run, 0) != nullptr) _exit(1);  // the parent checks this
    });
  }
  claim.reset();
  EXPECT_NE(RankClaim::take(run, 0), nullptr);
}

TEST(RankClaim, forked_child_can_claim_after_parent_releases) {
  const testing::TemporaryFolder folder;
  const std::string run = run_folder(folder.str(), "run");
  auto claim = RankClaim::take(run, 0);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    if (read(ready[0], &byte, 1) != 1) _exit(2);
    _exit(RankClaim::take(run, 0) != nullptr ? 0 : 1);
  }
  claim.reset();
  EXPECT_EQ(write(ready[1], "x", 1), 1);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  for (const int each : ready) close(each);
}

TEST(RankClaim, is_not_inherited_by_a_forked_child) {
  const testing::TemporaryFolder folder;
  const std::string run = run_folder(folder.str(), "run");
  auto claim = RankClaim::take(run, 0);
  const LivingChild worker([] {});
  claim.reset();
  const LivingChild other([&] {
    opened = RankClaim::take(run, 0);
    if (opened == nullptr) _exit(1);  // the parent checks this
  });
}

TEST(RankClaim, removes_its_file_only_in_its_process) {
  const testing::TemporaryFolder folder;
  const std::string run = run_folder(folder.str(), "run");
  auto claim = RankClaim::take(run, 0);
  {
    const LivingChild child([&] { claim.reset(); });
  }
  EXPECT_FALSE(fs::is_empty(run)) << "the lock of a living process";
  claim.reset();
  EXPECT_TRUE(fs::is_empty(run));
}

TEST(RankClaim, does_not_follow_symbolic_links) {
  const testing::TemporaryFolder folder;
  const std::string run = run_folder(folder.str(), "run");
  fs::create_directories(run);
  fs::create_symlink(folder.path() / "victim", fs::path(run) / ".rank00000.lock");
  EXPECT_FALSE(RankClaim::take(run, 0)->is_exclusive());
  EXPECT_FALSE(fs::exists(folder.path() / "victim"));
}

TEST(RankClaim, second_live_process_gets_its_own_run) {
  const testing::TemporaryFolder folder;
  const LivingChild child([&] { opened = claim_run(folder.str(), "run", 0).claim; });
  EXPECT_EQ(claim_run(folder.str(), "run", 0).run_id, "run-2");
  EXPECT_EQ(claim_run(folder.str(), "run", 1).run_id, "run");
}

TEST(RunId, must_be_a_portable_folder_name) {
  for (const char* id : {"run", "20261123-120000", "job_12.3", "a=1,b:2", "x@y+z"}) {
    EXPECT_NO_THROW(check_run_id(id)) << id;
  }
  const std::string longest(128, 'x');
  EXPECT_NO_THROW(check_run_id(longest));
  for (const std::string& id :
       {std::string("../.."), std::string("a/b"), std::string(".hidden"), std::string("a b"),
        std::string("a\x1b[1m"), longest + "x", std::string("a\0b", 3)}) {
    EXPECT_THROW(check_run_id(id), UsageError) << id;
  }
}

TEST(RunId, invalid_id_does_not_touch_log_dir) {
  const testing::TemporaryFolder folder;
  RunOptions options;
  options.log_dir = (folder.path() / "logs").string();
  options.run_id = "../../outside";
  EXPECT_THROW(RunWriter::open(options), UsageError);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Leftovers, killed_process_leftovers_are_removed_on_restart) {
  const testing::TemporaryFolder folder;
  const fs::path run = run_folder(folder.str(), "run");
  touch(run / ".rank00000.4194304.tmp");
  touch(run / ".rank00001.4194304.tmp");
  RunOptions options;
  options.log_dir = folder.str();
  options.run_id = "run";
  RunWriter::open(options)->close();
  EXPECT_FALSE(fs::exists(run / ".rank00000.4194304.tmp"));
  EXPECT_TRUE(fs::exists(run / ".rank00001.4194304.tmp")) << "of another rank";
}

TEST(Leftovers, files_of_a_live_process_are_kept) {
  const testing::TemporaryFolder folder;
  const fs::path repaired = folder.path() / ".rank00000.h5.repair.17.tmp";
  touch(repaired);
  remove_leftovers(folder.str(), 0);
  EXPECT_TRUE(fs::exists(repaired)) << "a repair may be about to mark it";
  {
    DiskSpace mark(repaired.string());
    mark.mark_live();
    make_old(repaired);
    remove_leftovers(folder.str(), 0);
    EXPECT_TRUE(fs::exists(repaired)) << "a repair of a large file takes long";
  }
  remove_leftovers(folder.str(), 0);
  EXPECT_FALSE(fs::exists(repaired));
}

TEST(Leftovers, dumps_of_dead_processes_are_removed) {
  const testing::TemporaryFolder folder;
  const fs::path iteration = folder.path() / "tensor_dumps/rank_0/iter_000003";
  const LivingChild child([] {});
  const fs::path of_dead = iteration / ".dump.4194304.0.tmp";  // above any pid
  const fs::path of_living = iteration / fmt::format(".dump.{}.0.tmp", child.pid());
  const fs::path young = iteration / ".dump.4194304.1.tmp";
  for (const fs::path& each : {of_dead, of_living, young}) touch(each);
  touch(iteration / "fc1_weight.h5");
  make_old(of_dead);
  make_old(of_living);
  remove_leftover_dumps(folder.str(), 0);
  EXPECT_FALSE(fs::exists(of_dead));
  EXPECT_TRUE(fs::exists(of_living));
  EXPECT_TRUE(fs::exists(young)) << "perhaps of another machine";
  EXPECT_TRUE(fs::exists(iteration / "fc1_weight.h5"));
}

TEST(DumpName, long_names_fit_and_stay_different) {
  const std::string layer(400, 'x');
  const std::string name = dump_name(layer + "1", "activation");
  EXPECT_LE(name.size() + std::string(".12345.h5").size(), 255U);
  EXPECT_TRUE(name.ends_with("_activation")) << name;
  EXPECT_NE(name, dump_name(layer + "2", "activation"));
  EXPECT_NE(name, dump_name(layer + "1", "weight"));
  EXPECT_EQ(dump_name("layers.0.fc1", "weight"), "layers_0_fc1_weight");
}

}  // namespace
}  // namespace telens::record
