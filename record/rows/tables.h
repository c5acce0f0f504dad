// The tables that a session records, besides records and histograms, whose rows belong together. A
// struct that is listed here has its table in the run file, and everything reads and writes it.
#pragma once

#include <functional>
#include <span>
#include <tuple>
#include <variant>

#include "record/rows/block_row.h"
#include "record/rows/event.h"
#include "record/rows/ledger_row.h"
#include "record/rows/scalar.h"

namespace telens::record {

// In the order in which a batch of them is written: what tells most comes first.
using RecordedRows = std::tuple<Scalar, LedgerRow, BlockRow, Event>;

template <typename Rows>
struct ChoiceOf;
template <typename... Rows>
struct ChoiceOf<std::tuple<Rows...>> {
  using Spans = std::variant<std::span<const Rows>...>;
  using Uses = std::variant<std::function<void(const Rows&)>...>;
};

// Rows of one of these tables, and what is to be called for each row of one of them.
using SomeRows = ChoiceOf<RecordedRows>::Spans;
using UseRow = ChoiceOf<RecordedRows>::Uses;

}  // namespace telens::record
