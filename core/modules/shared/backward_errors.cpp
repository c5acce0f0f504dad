#include "core/modules/shared/backward_errors.h"

#include <atomic>

namespace telens {
namespace {

std::atomic<BackwardErrorTranslator> translator{nullptr};

}  // namespace

void set_backward_error_translator(BackwardErrorTranslator function) { translator.store(function); }

void rethrow_from_backward() {
  if (const BackwardErrorTranslator function = translator.load()) function();
  throw;
}

}  // namespace telens
