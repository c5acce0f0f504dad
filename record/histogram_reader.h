// Reads the histograms of one file: joins bins with their records.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "record/packed_reader.h"
#include "record/run_schema.h"

namespace telens::record {

// Sixteen times those of a histogram over all codes of 16 bits. What has more is no histogram.
inline constexpr std::size_t kMostBins = 1 << 20;

using UseStoredHistogram =
    std::function<void(const Record& record, std::span<const HistogramBin> bins)>;

// Those whose record the filter keeps, in the order of writing. One of which a killed process has
// not written all bins is left out.
void read_histograms(const PackedRows<BinRow>& bins, const PackedReader& records,
                     const RecordFilter& filter, const UseStoredHistogram& use);

}  // namespace telens::record
