#include "python/bindings/run_reader.h"

#include <ATen/ops/empty.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "features/record/run_reader.h"

namespace telens::python {

namespace py = pybind11;

namespace {

using record::Dictionary;
using record::RunReader;

// A column of the result, grown piece by piece and handed over as a tensor (for its numpy()).
template <typename T>
class Column {
 public:
  void add(T value) { values_.push_back(value); }
  at::Tensor take() const {
    auto column =
        at::empty({static_cast<std::int64_t>(values_.size())}, c10::CppTypeToScalarType<T>::value);
    std::copy(values_.begin(), values_.end(), column.template mutable_data_ptr<T>());
    return column;
  }

 private:
  std::vector<T> values_;
};

py::dict read_records(const RunReader& reader, const record::RecordQuery& query) {
  Column<std::int32_t> rank, layer, tensor, gemm, statistic, scope;
  Column<std::int64_t> iteration;
  Column<double> value;
  {
    py::gil_scoped_release no_gil;
    reader.read(query, [&](int of_rank, std::span<const record::Record> records) {
      for (const record::Record& each : records) {
        rank.add(of_rank);
        iteration.add(each.iteration);
        layer.add(each.layer);
        tensor.add(each.tensor);
        gemm.add(each.gemm);
        statistic.add(each.statistic);
        scope.add(each.scope);
        value.add(each.value);
      }
    });
  }
  py::dict columns;
  columns["rank"] = rank.take();
  columns["iteration"] = iteration.take();
  columns["layer"] = layer.take();
  columns["tensor"] = tensor.take();
  columns["gemm"] = gemm.take();
  columns["statistic"] = statistic.take();
  columns["scope"] = scope.take();
  columns["value"] = value.take();
  return columns;
}

py::list read_segments(const RunReader& reader) {
  py::list rows;
  for (const record::Segment& segment : reader.segments()) {
    py::dict row;
    row["path"] = segment.path;
    row["rank"] = segment.rank;
    row["segment"] = segment.segment;
    row["run_id"] = segment.run_id;
    row["telens_version"] = segment.telens_version;
    row["world_size"] = segment.world_size;
    row["start_time"] = segment.start_time;
    row["ended"] = segment.end.has_value();
    row["end_reason"] = segment.end ? segment.end->reason : std::string();
    row["live"] = segment.live;
    row["bytes"] = segment.bytes;
    row["records"] = segment.records;
    row["dropped"] = segment.dropped;
    rows.append(row);
  }
  return rows;
}

// Of a file that is damaged, and left out.
void warn_in_python(const std::string& line) {
  const py::gil_scoped_acquire held;
  if (PyErr_WarnEx(PyExc_UserWarning, line.c_str(), 2) != 0) throw py::error_already_set();
}

}  // namespace

void bind_run_reader(py::module_& module) {
  py::enum_<Dictionary>(module, "Dictionary")
      .value("layer", Dictionary::layer)
      .value("tensor", Dictionary::tensor)
      .value("gemm", Dictionary::gemm)
      .value("statistic", Dictionary::statistic)
      .value("scope", Dictionary::scope)
      .value("word", Dictionary::word);
  py::class_<RunReader>(module, "RunReader", "Joins the files of a run.")
      .def(py::init([](const std::string& path) { return RunReader(path, warn_in_python); }),
           py::arg("path"))
      .def("names", &RunReader::names, py::arg("dictionary"))
      .def("config_text", &RunReader::config_text)
      .def("environment", &RunReader::environment)
      .def("segments", &read_segments, "A dict of each file, in order of rank and segment.")
      .def(
          "records",
          [](const RunReader& reader, record::RecordQuery::Ids layers,
             record::RecordQuery::Ids tensors, record::RecordQuery::Ids gemms,
             record::RecordQuery::Ids statistics, std::int64_t first_iteration,
             std::int64_t last_iteration, std::optional<int> rank) {
            return read_records(reader,
                                {std::move(layers), std::move(tensors), std::move(gemms),
                                 std::move(statistics), first_iteration, last_iteration, rank});
          },
          py::kw_only(), py::arg("layers"), py::arg("tensors"), py::arg("gemms"),
          py::arg("statistics"), py::arg("first_iteration"), py::arg("last_iteration"),
          py::arg("rank"), "Columns by name; names are ids, -1 for none.")
      .def(
          "scalars",
          [](const RunReader& reader) {
            std::vector<std::tuple<int, std::int64_t, std::int32_t, double>> rows;
            for (const record::Scalar& row : reader.scalars()) {
              rows.emplace_back(row.rank, row.iteration, row.name, row.value);
            }
            return rows;
          },
          "(rank, iteration, word, value)")
      .def(
          "events",
          [](const RunReader& reader) {
            std::vector<
                std::tuple<int, double, std::int64_t, std::int32_t, std::int32_t, std::int32_t>>
                rows;
            for (const record::Event& row : reader.events()) {
              rows.emplace_back(row.rank, row.time, row.iteration, row.kind, row.text, row.layer);
            }
            return rows;
          },
          "(rank, time, iteration, kind, text, layer)");
}

}  // namespace telens::python
