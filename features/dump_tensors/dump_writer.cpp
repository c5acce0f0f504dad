#include "features/dump_tensors/dump_writer.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace telens::features {

void DumpWriter::write(std::vector<Arrived>& dumps) {
  for (Arrived& each : dumps) {
    record::write_tensor_dump(each.work.place.folder, each.work.place.name,
                              each.work.dump.finished(each.tensors));
    each.tensors.clear();
  }
}

void DumpWriter::collect(Waiting waiting) {
  std::ranges::move(arrivals_.take(waiting), std::back_inserter(arrived_));
}

void DumpWriter::finish_all() {
  bytes_ = bytes_of_writing_ = 0;
  if (writing_.valid()) writing_.get();
  collect(Waiting::yes);
  std::vector<Arrived> dumps = std::exchange(arrived_, {});
  write(dumps);
}

bool DumpWriter::add(Place place, PendingDump dump) {
  std::vector<TensorHandle> tensors = dump.take_tensors();
  const std::lock_guard lock(mutex_);
  for (const TensorHandle& each : tensors) bytes_ += each.nbytes();
  const bool is_there = arrivals_.add(std::move(tensors), {std::move(place), std::move(dump)});
  const bool too_many = !is_there && bytes_ > most_bytes_;
  if (is_there || too_many) finish_all();
  return too_many;
}

void DumpWriter::write_arrived() {
  const std::lock_guard lock(mutex_);
  collect(Waiting::no);
  if (writing_.valid()) {
    if (writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
    bytes_ -= std::exchange(bytes_of_writing_, 0);
    writing_.get();
  }
  if (arrived_.empty()) return;
  std::vector<Arrived> dumps = std::exchange(arrived_, {});
  for (const Arrived& each : dumps) {
    for (const TensorHandle& tensor : each.tensors) bytes_of_writing_ += tensor.nbytes();
  }
  writing_ = std::async(std::launch::async, [dumps = std::move(dumps)]() mutable { write(dumps); });
}

void DumpWriter::finish() {
  const std::lock_guard lock(mutex_);
  finish_all();
}

}  // namespace telens::features
