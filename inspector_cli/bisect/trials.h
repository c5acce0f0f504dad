// Runs of the user's command with different debug configs. Results are stored on disk, so that a
// continued search does not repeat runs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "analysis/series.h"
#include "inspector_cli/bisect/choice.h"

namespace telens::cli {

struct LossVerdict {
  bool passed = false;
  std::string text;  // "loss 3.21, reference 2.4"
};

// The loss of a trusted run, to which trials are compared.
class LossReference {
 public:
  // Throws UsageError if the run does not contain losses or contains a non-finite one, RecordError
  // if it cannot be read.
  LossReference(std::string path, double tolerance);

  // Compares the mean losses of the last tenth of the common iterations (at least one). A run
  // passes if all its losses are finite and its mean exceeds the reference by at most `tolerance`
  // times the reference's magnitude. Throws UsageError without a common iteration.
  LossVerdict judge(const std::string& log_dir) const;

 private:
  std::string path_;
  double tolerance_;
  std::vector<diagnosis::Point> losses_;  // by iteration
};

struct TrialOptions {
  std::vector<std::string> command;  // {config} and {log_dir} in it are replaced
  std::string check = {};            // a shell command, or ""
  std::optional<LossReference> reference = std::nullopt;
  std::string reference_name = {};               // reference and tolerance, for the state file
  std::optional<double> timeout = std::nullopt;  // seconds, of the command and of the check each
  std::string config = {};                       // sections added to the config of every run
  std::string folder;                            // holds the state file and the runs
};

struct Trial {
  int number = 0;  // counts from 1; the folder is run-001
  std::string config;
  bool passed = false;
  std::string reason = {};  // "exit code 3"
  double seconds = 0;
};

class Trials {
 public:
  // Called before a run, when only its number is known, and after it.
  using Show = std::function<void(const Choice&, const Trial&, bool ended)>;

  // Loads the runs of an earlier start of the same search. Throws UsageError if the folder belongs
  // to another search or its state file is invalid.
  Trials(TrialOptions options, Show show);

  // Runs the command, or returns the stored result for the same config. The first run also records
  // the ledger. Throws UsageError or Interrupted.
  const Trial& run(const Choice& choice);

  // Removes the stored state, so that the next start repeats all runs.
  void forget() const;

  // Returns the log_dir of the trial.
  std::string get_log_dir(const Trial& trial) const;
  // Returns the file with the output of the trial's programs.
  std::string get_output(const Trial& trial) const;
  std::size_t count() const { return trials_.size(); }
  std::size_t loaded() const { return loaded_; }

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
  std::size_t loaded_ = 0;
};

}  // namespace telens::cli
