#include "core/modules/shared/named_errors.h"

#include <c10/util/Exception.h>

#include <string_view>
#include <typeinfo>

#include "core/base/internal_error.h"

namespace telens {
namespace {

bool names(std::string_view text, const std::string& layer) {
  return text.find(layer) != std::string_view::npos;
}

// Not of a kind derived from E, which would lose what it is.
template <typename E>
[[noreturn]] void throw_again(const E& error, const std::string& layer) {
  if (typeid(error) != typeid(E) || names(error.what(), layer)) throw;
  throw E(layer + ": " + error.what());
}

}  // namespace

void rethrow_naming(const std::string& layer) {
  try {
    throw;
  } catch (const ShapeError& error) {
    throw_again(error, layer);
  } catch (const UsageError& error) {
    throw_again(error, layer);
  } catch (const InternalError& error) {
    throw_again(error, layer);
  } catch (const Error& error) {
    throw_again(error, layer);
  } catch (c10::Error& error) {
    // Keeps its kind, such as torch.OutOfMemoryError.
    if (!names(error.what_without_backtrace(), layer)) error.add_context("in the layer " + layer);
    throw;
  }
}

}  // namespace telens
