// telens serve: serves the report of a growing run to a browser on this machine.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>

#include "inspector_cli/commands/options.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/report/open_run.h"
#include "inspector_cli/serve/live_report.h"
#include "inspector_cli/serve/loopback_server.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {
namespace {

constexpr auto kBetweenRequests = std::chrono::milliseconds(50);
constexpr int kReadingShare = 10;  // reading takes at most a tenth of the time

struct ServeOptions {
  std::string run;
  int port = 0;
  double interval = 2;  // seconds
};

// Updates the report until the user stops the server.
void follow(LiveReport& report, LiveReport::Clock::duration interval) {
  LiveReport::Clock::time_point next = LiveReport::Clock::now() + interval;
  while (interrupting_signal() == 0) {
    std::this_thread::sleep_for(kBetweenRequests);
    if (LiveReport::Clock::now() < next) continue;
    report.update();
    next = LiveReport::Clock::now() + std::max(interval, kReadingShare * report.cost());
  }
}

void run_serve(const ServeOptions& options) {
  const auto interval = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(options.interval));
  const InterruptWatch interrupts;
  LiveReport report(options.run, choose_run(options.run), interval);
  const std::string token = new_token();
  LoopbackServer server(options.port, token, [&](std::string_view path, std::string_view after) {
    return report.answer(path, after);
  });
  fmt::print("http://127.0.0.1:{}/?token={}\n", server.port(), token);
  flush_stdout();
  server.start();
  follow(report, interval);
  // Ctrl-C is the normal end. Other signals are reported in the exit code.
  if (interrupting_signal() != SIGINT) throw_if_interrupted();
}

}  // namespace

void add_serve(CLI::App& app) {
  constexpr int kHighestPort = 65535;
  constexpr double kLongestInterval = 3600;
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command = app.add_subcommand(
      "serve",
      "Serve the report of a running job to a local browser.\n\n"
      "Prints a URL that contains an access token. The page updates as the run grows. Ctrl-C stops "
      "the server.");
  add_run(*command, options->run);
  command->add_option("--port", options->port, "The port on 127.0.0.1; 0 picks a free one")
      ->type_name("N")
      ->check(whole_number_from(0, kHighestPort))
      ->capture_default_str();
  command->add_option("--interval", options->interval, "Seconds between updates (default: 2)")
      ->type_name("SECONDS")
      ->check(seconds_up_to(kLongestInterval));
  command->footer("Example:\n  telens serve logs --port 8000");
  command->callback([options] { run_serve(*options); });
}

}  // namespace telens::cli
