// Decisions that one rank makes and all ranks have to follow, for example that a trigger fires, or
// how often a section may run. At the end of an iteration each rank decides. The decisions are sent
// in the header of the next step's collective, and the result takes effect on all ranks in the same
// step. A single rank follows its own decisions at once.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "hooks/sink.h"

namespace telens {

// A number with a name: the loss, or a number that a program records.
struct NamedNumber {
  std::string name;
  double value;
};

// Everything known at the end of an iteration: rows (reduced if they cover several ranks) and
// numbers.
struct EndedIteration {
  std::int64_t iteration = 0;
  std::span<const Row> rows;
  std::span<const NamedNumber> numbers;
};

// Makes decisions. Its state may only change in follow(), so that it stays the same on all ranks.
class Decider {
 public:
  virtual ~Decider() = default;

  // Returns true if it decides at the end of this iteration. Depends only on the configuration and
  // on the decisions that it has followed, so that all ranks return the same.
  virtual bool decides(std::int64_t iteration) const = 0;

  // Returns true if it decides by rows: these have to have arrived from the devices by then.
  virtual bool looks_at_rows() const { return true; }

  // Returns the decision of this rank; 0 for none.
  virtual std::int64_t decide(const EndedIteration& ended) = 0;

  // Receives all ranks' decisions, in rank order. Only called after a decision.
  virtual void follow(std::int64_t iteration, std::span<const std::int64_t> wanted) = 0;
};

// The deciders of a session, in the order of the configuration.
class Decisions {
 public:
  // `runs` returns whether the decider's section runs; the same on all ranks. `guard` calls
  // decide() or skips it. If it skips the call, or swallows its exception, the decision is 0.
  struct Rules {
    std::function<bool()> runs;
    std::function<void(const std::function<void()>& decide)> guard;
  };

  void add(Decider& decider, Rules rules) { all_.push_back({&decider, std::move(rules)}); }
  bool any() const { return !all_.empty(); }
  // Returns true if a decider reads the rows of this iteration.
  bool look_at_rows(std::int64_t iteration) const;

  // Returns true if words are pending for the next header. The same on all ranks.
  bool waiting() const { return waiting_; }
  // Returns this rank's words, one for each decider.
  std::vector<std::int64_t> words() const;

  // Receives all ranks' words, in rank order.
  void follow(std::int64_t iteration, std::span<const std::vector<std::int64_t>> of_ranks);
  void decide(const EndedIteration& ended);
  // Follows this rank's words, when it is the only rank.
  void follow_own(std::int64_t iteration);

 private:
  struct Part {
    Decider* decider;
    Rules rules;
    std::int64_t word = 0;
    bool decided = false;  // and has not followed yet; the same on all ranks
  };

  std::vector<Part> all_;
  bool waiting_ = false;
};

}  // namespace telens
