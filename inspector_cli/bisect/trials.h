// Runs of the user's command under chosen configurations: each choice is run once, also over
// several starts of the search.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "inspector_cli/bisect/choice_config.h"
#include "inspector_cli/bisect/loss_reference.h"

namespace telens::cli {

struct TrialOptions {
  std::vector<std::string> command;  // {config} and {log_dir} in it are replaced
  std::string check = {};            // a line of the shell; "": none
  std::optional<LossReference> reference = std::nullopt;
  std::string reference_name = {};               // reference and tolerance, for the state file
  std::optional<double> timeout = std::nullopt;  // seconds, of the command and of the check each
  std::string config = {};                       // sections that every run gets too
  std::string folder;                            // holds the state file and the runs
};

struct Trial {
  int number = 0;  // from 1 on, as its folder: run-001
  std::string config;
  bool passed = false;
  std::string reason = {};  // "exit code 3"
  double seconds = 0;
};

class Trials {
 public:
  // Called before a run, with its number alone, and after it.
  using Show = std::function<void(const Choice&, const Trial&, bool ended)>;

  // Takes over what an earlier start of the same search has run. Throws UsageError where the folder
  // holds another search, or a file that is no state of one.
  Trials(TrialOptions options, Show show);

  // Runs the command, or returns what it did under the same configuration before. The first one
  // also records what the GEMMs ran in. Throws UsageError, Interrupted.
  const Trial& run(const Choice& choice);

  // Removes the state, so that the next start runs everything anew.
  void forget() const;

  // The folder that the trial's runs are recorded into.
  std::string get_log_dir(const Trial& trial) const;
  // The file with what the trial's programs have printed.
  std::string get_output(const Trial& trial) const;
  std::size_t count() const { return trials_.size(); }
  std::size_t taken_over() const { return taken_over_; }

 private:
  std::string state_path() const;
  std::string get_folder(int number) const;
  std::string get_config(const Choice& choice) const;
  void read_state();
  void write_state() const;
  void execute(Trial& trial) const;

  TrialOptions options_;
  Show show_;
  std::vector<Trial> trials_;
  std::size_t taken_over_ = 0;
};

}  // namespace telens::cli
