// Copies to the host that arrive when a test says so, as copies from a busy GPU arrive late.
#pragma once

#include <memory>
#include <vector>

#include "hooks/streams.h"

namespace telens::testing {

class LateCopies {
 public:
  HostCopies copies() {
    return [this](std::vector<TensorHandle> tensors) {
      return std::make_unique<LateCopy>(std::move(tensors), begun_++, *this);
    };
  }

  // Lets the first `count` copies arrive.
  void let_arrive(int copies) { arrived_ = copies; }
  int begun() const { return begun_; }
  // The number of copies for which a thread waited.
  int waited() const { return waited_; }

 private:
  class LateCopy final : public HostCopy {
   public:
    LateCopy(std::vector<TensorHandle> tensors, int number, LateCopies& all)
        : tensors_(std::move(tensors)), number_(number), all_(all) {}

    bool arrived() override { return number_ < all_.arrived_; }
    std::vector<TensorHandle> take() override {
      if (!arrived()) ++all_.waited_;
      return std::move(tensors_);
    }

   private:
    std::vector<TensorHandle> tensors_;
    int number_;
    LateCopies& all_;
  };

  int begun_ = 0;
  int arrived_ = 0;
  int waited_ = 0;
};

}  // namespace telens::testing
