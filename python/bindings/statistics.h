// Statistics that Python classes define, and those that they ask the engine for.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "hooks/statistics_engine.h"

namespace telens::python {

// A TensorReading as a feature class sees it. GIL held.
class PythonReading {
 public:
  // Parses a call's names once. Lives as long as the feature.
  class Requests;

  PythonReading(TensorReading& reading, Requests& requests);
  ~PythonReading();
  PythonReading(const PythonReading&) = delete;
  PythonReading& operator=(const PythonReading&) = delete;

  // telens._C.StatisticsOfTensor; raises an error if it is used after this object's end.
  const pybind11::object& object() const { return object_; }

  static std::shared_ptr<Requests> make_requests(StatisticsEngine& engine);

 private:
  struct Handle;
  friend void bind_statistics(pybind11::module_& module);

  std::shared_ptr<Handle> handle_;
  pybind11::object object_;
};

}  // namespace telens::python
