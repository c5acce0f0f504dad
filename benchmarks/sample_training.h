// The GPT sample's training, a step at a time.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "hooks/debug.h"
#include "samples/gpt/adamw.h"
#include "samples/gpt/model.h"
#include "samples/gpt/precision.h"
#include "samples/gpt/text.h"
#include "samples/gpt/training.h"

namespace telens::benchmark {

class SampleTraining {
 public:
  explicit SampleTraining(std::int64_t batch = gpt::TrainingOptions().batch,
                          const std::string& precision = "delayed")
      : batch_(batch),
        text_(gpt::Text::load("", options_.text_bytes)),
        model_(options_.model),
        adamw_(parameters(), {}),
        precision_(precision, at::kCPU) {}

  void step() {
    const gpt::Batch batch =
        text_.batch(options_.seed, step_++, {.sequence = options_.sequence, .batch = batch_});
    at::Tensor loss;
    {
      const gpt::Precision::Region region(precision_);
      const at::Tensor logits = model_.forward(batch.inputs).to(at::kFloat);
      loss = at::cross_entropy_loss(logits.flatten(0, 1), batch.targets.flatten());
    }
    loss.backward();
    adamw_.step(options_.learning_rate / 10);
    debug::step(loss.item<float>());
  }

 private:
  gpt::AdamW::NamedTensors parameters() {
    gpt::AdamW::NamedTensors all;
    for (const auto& item : model_.named_parameters()) all.emplace_back(item.key(), item.value());
    return all;
  }

  gpt::TrainingOptions options_;
  std::int64_t batch_;
  gpt::Text text_;
  gpt::Model model_;
  gpt::AdamW adamw_;
  gpt::Precision precision_;
  std::int64_t step_ = 0;
};

}  // namespace telens::benchmark
