// How a session ends when its process ends: exit, signals, forks.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "hooks/session/termination_flush.h"
#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using ::testing::ElementsAre;
using testing::FakeLayer;
using testing::get_values;
using ::testing::HasSubstr;
using testing::kMaxOfActivation;
using testing::section;

using SessionTest = testing::SessionTest;

// Runs `body` in a child process; returns its wait status.
template <typename Body>
int status_of_child(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    std::exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST_F(SessionTest, a_session_left_open_is_closed_at_exit) {
  const int status = status_of_child([&] {
    debug::initialize(options(section(kMaxOfActivation)));
    FakeLayer().run();
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_THAT(get_values("max", folder.str()), ElementsAre("0:layer=1"));
  EXPECT_TRUE(record::RunReader(folder.str()).segments().at(0).end.has_value());
}

// Runs an iteration with one layer in a session that SIGTERM ends.
void step_until_sigterm(const debug::InitializeOptions& options) {
  debug::initialize(options);
  FakeLayer().run();
  debug::step();
  ::raise(SIGTERM);
  for (;;) pause();
}

TEST_F(SessionTest, sigterm_saves_finished_steps_and_ends_the_process) {
  const int status =
      status_of_child([&] { step_until_sigterm(options(section(kMaxOfActivation))); });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  EXPECT_THAT(get_values("max", folder.str()), ElementsAre("0:layer=1"));
}

TEST_F(SessionTest, program_handler_decides_the_effect_of_sigterm) {
  const int status = status_of_child([&] {
    std::signal(SIGTERM, [](int) { _exit(7); });
    debug::initialize(options());
    ::raise(SIGTERM);
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

// Installs a handler in the place of ours, as a program may.
void put_over_ours(void (*handler)(int, siginfo_t*, void*), struct sigaction* below) {
  struct sigaction over_ours = {};
  over_ours.sa_sigaction = handler;
  over_ours.sa_flags = SA_SIGINFO;
  sigaction(SIGTERM, &over_ours, below);
}

struct sigaction below_ours_puts = {};
void call_what_was_there(int number, siginfo_t* info, void* context) {
  below_ours_puts.sa_sigaction(number, info, context);
}

TEST_F(SessionTest, chained_handler_is_called_once_in_a_later_session) {
  const int status = status_of_child([&] {
    debug::initialize(options());
    put_over_ours(call_what_was_there, &below_ours_puts);
    debug::end_debug();
    debug::InitializeOptions later = options(section(kMaxOfActivation));
    later.run_id = "later";
    step_until_sigterm(later);
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  EXPECT_THAT(get_values("max", (folder.path() / "telens/later").string()),
              ElementsAre("0:layer=1"));
}

int calls_of_the_first = 0;
int calls_of_the_second = 0;
void count_first(int) { ++calls_of_the_first; }
void count_second(int number, siginfo_t* info, void* context) {
  ++calls_of_the_second;
  call_what_was_there(number, info, context);
}

TEST_F(SessionTest, program_handlers_are_called_once_after_all_sessions) {
  const int status = status_of_child([&] {
    std::signal(SIGTERM, count_first);
    debug::initialize(options());
    put_over_ours(count_second, &below_ours_puts);
    debug::end_debug();
    for (int i = 0; i < 2; ++i) {
      debug::initialize(options());
      ::raise(SIGTERM);
      debug::end_debug();
      ::raise(SIGTERM);
    }
    _exit(16 * calls_of_the_first + calls_of_the_second);
  });
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status) / 16, 4);
  EXPECT_EQ(WEXITSTATUS(status) % 16, 4);
}

TEST_F(SessionTest, sigterm_saves_after_a_handler_was_installed_twenty_times) {
  const int status = status_of_child([&] {
    for (int i = 0; i < 20; ++i) {
      debug::initialize(options());
      struct sigaction ours = {};
      put_over_ours(call_what_was_there, i == 0 ? &below_ours_puts : &ours);
      debug::end_debug();
    }
    debug::InitializeOptions later = options(section(kMaxOfActivation));
    later.run_id = "later";
    step_until_sigterm(later);
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  EXPECT_THAT(get_values("max", (folder.path() / "telens/later").string()),
              ElementsAre("0:layer=1"));
}

template <int kNumber>
void another_handler(int, siginfo_t*, void*) {
  _exit(kNumber);
}

template <int... kNumbers>
void have_sessions_with_handlers(const debug::InitializeOptions& options,
                                 std::integer_sequence<int, kNumbers...>) {
  const auto have_session = [&](void (*handler)(int, siginfo_t*, void*)) {
    debug::initialize(options);
    put_over_ours(handler, nullptr);
    debug::end_debug();
  };
  (have_session(another_handler<kNumbers>), ...);
}

TEST_F(SessionTest, a_session_that_sigterm_will_not_save_says_so) {
  const int status = status_of_child([&] {
    const std::string err = (folder.path() / "stderr").string();
    if (std::freopen(err.c_str(), "w", stderr) == nullptr) _exit(2);
    have_sessions_with_handlers(options(), std::make_integer_sequence<int, 9>());
    debug::initialize(options());
    _exit(0);
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  std::ifstream err(folder.path() / "stderr");
  const std::string text{std::istreambuf_iterator<char>(err), {}};
  EXPECT_THAT(text, HasSubstr("SIGTERM will not save the records of this session"));
}

TEST_F(SessionTest, sigterm_ends_the_process_though_the_disk_hangs) {
  const auto begin = std::chrono::steady_clock::now();
  const int status = status_of_child([] {
    const debug::TerminationFlush hangs(
        [] {
          for (;;) pause();
        },
        std::chrono::milliseconds(300));
    ::raise(SIGTERM);
    for (;;) pause();
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST_F(SessionTest, a_forked_childs_layers_run_as_if_nobody_watched) {
  debug::initialize(options(section(kMaxOfActivation)));
  FakeLayer layer;
  EXPECT_TRUE(layer.run());
  const int status = status_of_child([&] {
    const bool watched = layer.run(at::full({4}, 9.0F)) || FakeLayer("fresh").run();
    _exit(watched ? 3 : 0);
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  debug::step();
  EXPECT_TRUE(layer.run(at::full({4}, 2.0F)));
  debug::end_debug();
  EXPECT_THAT(get_values("max", folder.str()), ElementsAre("0:layer=1", "1:layer=2"));
}

TEST_F(SessionTest, forked_child_may_start_a_session) {
  debug::initialize(options(section(kMaxOfActivation)));
  FakeLayer layer;
  EXPECT_TRUE(layer.run());
  testing::TemporaryFolder own;
  const int status = status_of_child([&] {
    debug::InitializeOptions mine = options(section(kMaxOfActivation));
    mine.log_dir = own.str();
    debug::initialize(mine);
    layer.run(at::full({4}, 9.0F));
    debug::step();
    ::raise(SIGTERM);
    for (;;) pause();
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  debug::end_debug();
  EXPECT_THAT(get_values("max", folder.str()), ElementsAre("0:layer=1"));
  EXPECT_THAT(get_values("max", own.str()), ElementsAre("0:layer=9"));
}

TEST_F(SessionTest, sigterm_in_a_forked_child_does_not_affect_the_session) {
  debug::initialize(options(section(kMaxOfActivation)));
  FakeLayer().run();
  const int killed = status_of_child([] {
    ::raise(SIGTERM);
    for (;;) pause();
  });
  EXPECT_TRUE(WIFSIGNALED(killed) && WTERMSIG(killed) == SIGTERM) << killed;
  const int exited = status_of_child([] {});
  EXPECT_TRUE(WIFEXITED(exited) && WEXITSTATUS(exited) == 0) << exited;
  debug::end_debug();
  EXPECT_THAT(get_values("max", folder.str()), ElementsAre("0:layer=1"));
}

}  // namespace
}  // namespace telens
