#include "core/modules/shared/autograd_utils.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <string_view>
#include <typeinfo>

#include "core/base/error.h"

namespace telens {
namespace {

std::atomic<BackwardErrorTranslator> translator{nullptr};

bool names(std::string_view text, const std::string& layer) {
  return text.find(layer) != std::string_view::npos;
}

// Rethrows types derived from E unchanged: a copy would lose the derived type.
template <typename E>
[[noreturn]] void rethrow_with_name(const E& error, const std::string& layer) {
  if (typeid(error) != typeid(E) || names(error.what(), layer)) throw;
  throw E(layer + ": " + error.what());
}

}  // namespace

void set_backward_error_translator(BackwardErrorTranslator function) { translator.store(function); }

void rethrow_from_backward() {
  if (const BackwardErrorTranslator function = translator.load()) function();
  throw;
}

void rethrow_naming(const std::string& layer) {
  try {
    throw;
  } catch (const ShapeError& error) {
    rethrow_with_name(error, layer);
  } catch (const UsageError& error) {
    rethrow_with_name(error, layer);
  } catch (const InternalError& error) {
    rethrow_with_name(error, layer);
  } catch (const Error& error) {
    rethrow_with_name(error, layer);
  } catch (c10::Error& error) {
    // Keeps its type, such as torch.OutOfMemoryError.
    if (!names(error.what_without_backtrace(), layer)) error.add_context("in the layer " + layer);
    throw;
  }
}

}  // namespace telens
