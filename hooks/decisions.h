// Decisions that one rank makes and all ranks have to follow: that a trigger fires, how often a
// section may run. At the end of an iteration each decides; the decisions travel in the header of
// the next step's collective, and what came of it takes effect on all ranks in the same step. A
// rank that is alone follows itself at once.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "hooks/sink.h"

namespace telens {

// A number with a name: the loss, or what a program records.
struct NamedNumber {
  std::string name;
  double value;
};

// Everything known at the end of an iteration: rows, those of several ranks reduced, and numbers.
struct EndedIteration {
  std::int64_t iteration = 0;
  std::span<const Row> rows;
  std::span<const NamedNumber> numbers;
};

// Makes decisions. Its state may change in follow() alone, so that it stays the same on all ranks.
class Decider {
 public:
  virtual ~Decider() = default;

  // True if it decides at the end of this iteration: by the configuration and by what it has
  // followed, so that all ranks say the same.
  virtual bool decides(std::int64_t iteration) const = 0;

  // True if it decides by rows: they have to have come from the devices by then.
  virtual bool looks_at_rows() const { return true; }

  // The decision of this rank; 0: none.
  virtual std::int64_t decide(const EndedIteration& ended) = 0;

  // The decisions of all ranks, in their order. Called after a decision only.
  virtual void follow(std::int64_t iteration, std::span<const std::int64_t> wanted) = 0;
};

// The deciders of a session, in the order of the configuration.
class Decisions {
 public:
  // `runs`: whether the decider's section does; the same on all ranks. `guard` calls decide(), or
  // does not; where it does not, or lets it throw without a word, the decider wants nothing.
  struct Rules {
    std::function<bool()> runs;
    std::function<void(const std::function<void()>& decide)> guard;
  };

  void add(Decider& decider, Rules rules) { all_.push_back({&decider, std::move(rules)}); }
  bool any() const { return !all_.empty(); }
  // True if a decider looks at the rows of this iteration.
  bool look_at_rows(std::int64_t iteration) const;

  // True if words wait for a header to travel in. The same on all ranks.
  bool waiting() const { return waiting_; }
  // This rank's, one for each decider.
  std::vector<std::int64_t> words() const;

  // The words of all ranks, in their order, have arrived.
  void follow(std::int64_t iteration, std::span<const std::vector<std::int64_t>> of_ranks);
  void decide(const EndedIteration& ended);
  // Without other ranks.
  void follow_own(std::int64_t iteration);

 private:
  struct Part {
    Decider* decider;
    Rules rules;
    std::int64_t word = 0;
    bool decided = false;  // and did not follow yet; the same on all ranks
  };

  std::vector<Part> all_;
  bool waiting_ = false;
};

}  // namespace telens
