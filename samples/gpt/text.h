// The training text, as bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace gpt {

struct Batch {
  at::Tensor inputs;   // int64 [seq, batch]
  at::Tensor targets;  // int64 [seq, batch]: the byte after each input

  Batch to(const at::Device& device) const { return {inputs.to(device), targets.to(device)}; }
};

struct BatchShape {
  std::int64_t sequence;
  std::int64_t batch;
};

class Text {
 public:
  // Reads the files below `folder` without NUL bytes, ordered by path, up to max_bytes. An empty
  // `folder` selects Python's standard library. Throws telens::UsageError if there is no text.
  static Text load(const std::string& folder, std::int64_t max_bytes);

  // Returns the entropy of the next byte given the current one, in nats: the loss of the best
  // bigram model.
  double bigram_entropy() const;

  // Returns sequences at positions that depend only on seed and step, so that a resumed run
  // continues with the same batches.
  Batch batch(std::uint64_t seed, std::int64_t step, const BatchShape& shape) const;

  const std::string& folder() const { return folder_; }
  std::int64_t size() const { return bytes_.numel(); }

 private:
  Text(std::string folder, at::Tensor bytes)
      : folder_(std::move(folder)), bytes_(std::move(bytes)) {}

  std::string folder_;
  at::Tensor bytes_;  // uint8
};

}  // namespace gpt
