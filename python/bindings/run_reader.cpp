#include "python/bindings/module.h"

#include <ATen/ops/empty.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "features/record/run_reader.h"
#include "features/record/runs_beside.h"
#include "python/bindings/gil.h"

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

// The columns that tables of records and of bins share: they name the record of a row.
class RecordColumns {
 public:
  void add(int of_rank, const record::Record& record) {
    rank_.add(of_rank);
    iteration_.add(record.iteration);
    layer_.add(record.layer);
    tensor_.add(record.tensor);
    gemm_.add(record.gemm);
    statistic_.add(record.statistic);
    scope_.add(record.scope);
  }
  py::dict take() const {
    py::dict columns;
    columns["rank"] = rank_.take();
    columns["iteration"] = iteration_.take();
    columns["layer"] = layer_.take();
    columns["tensor"] = tensor_.take();
    columns["gemm"] = gemm_.take();
    columns["statistic"] = statistic_.take();
    columns["scope"] = scope_.take();
    return columns;
  }

 private:
  Column<std::int32_t> rank_, layer_, tensor_, gemm_, statistic_, scope_;
  Column<std::int64_t> iteration_;
};

py::dict read_records(const RunReader& reader, const record::RecordQuery& query) {
  RecordColumns of;
  Column<double> value;
  {
    const WithoutGil no_gil;
    reader.read(query, [&](int rank, std::span<const record::Record> records) {
      for (const record::Record& each : records) {
        of.add(rank, each);
        value.add(each.value);
      }
    });
  }
  py::dict columns = of.take();
  columns["value"] = value.take();
  return columns;
}

// A row for each bin.
py::dict read_histograms(const RunReader& reader, const record::RecordQuery& query) {
  RecordColumns of;
  Column<std::int64_t> bin, count;
  {
    const WithoutGil no_gil;
    reader.read_histograms(query, [&](int rank, const record::Record& record,
                                      std::span<const record::HistogramBin> bins) {
      for (const record::HistogramBin& each : bins) {
        of.add(rank, record);
        bin.add(each.bin);
        count.add(static_cast<std::int64_t>(each.count));
      }
    });
  }
  py::dict columns = of.take();
  columns["bin"] = bin.take();
  columns["count"] = count.take();
  return columns;
}

// A row for each block.
py::dict read_blocks(const RunReader& reader, const record::RecordQuery& query) {
  RecordColumns of;
  Column<std::int64_t> block_row, block_column;
  Column<double> value;
  {
    const WithoutGil no_gil;
    for (const auto& [rank, row] : reader.blocks(query)) {
      of.add(rank, {row.iteration, row.layer, row.tensor, row.gemm, row.statistic});
      block_row.add(row.block_row);
      block_column.add(row.block_column);
      value.add(row.value);
    }
  }
  py::dict columns = of.take();
  columns["block_row"] = block_row.take();
  columns["block_column"] = block_column.take();
  columns["value"] = value.take();
  return columns;
}

// A method that reads a table for the arguments of a query.
template <py::dict (*read)(const RunReader&, const record::RecordQuery&)>
void def_table(py::class_<RunReader>& type, const char* name, const char* doc) {
  type.def(
      name,
      [](const RunReader& reader, record::RecordQuery::Ids layers, record::RecordQuery::Ids tensors,
         record::RecordQuery::Ids gemms, record::RecordQuery::Ids statistics,
         std::int64_t first_iteration, std::int64_t last_iteration, std::optional<int> rank) {
        return read(reader, {std::move(layers), std::move(tensors), std::move(gemms),
                             std::move(statistics), first_iteration, last_iteration, rank});
      },
      py::kw_only(), py::arg("layers"), py::arg("tensors"), py::arg("gemms"), py::arg("statistics"),
      py::arg("first_iteration"), py::arg("last_iteration"), py::arg("rank"), doc);
}

// Text of a file, in which a byte that belongs to no character of UTF-8 stands as "\xff": a layer
// may have any name, and to refuse it here would be to refuse its numbers.
py::str text_of(const std::string& text) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

py::str path_of(const std::string& path) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
}

py::list read_names(const RunReader& reader, Dictionary dictionary) {
  py::list names;
  for (const std::string& name : reader.names(dictionary)) names.append(text_of(name));
  return names;
}

py::list read_environment(const RunReader& reader) {
  py::list rows;
  for (const auto& [name, value] : reader.environment()) {
    rows.append(py::make_tuple(text_of(name), text_of(value)));
  }
  return rows;
}

py::list read_segments(const RunReader& reader) {
  py::list rows;
  for (const record::Segment& segment : reader.segments()) {
    py::dict row;
    row["path"] = path_of(segment.path);
    row["rank"] = segment.rank;
    row["segment"] = segment.segment;
    row["run_id"] = text_of(segment.run_id);
    row["telens_version"] = text_of(segment.telens_version);
    row["world_size"] = segment.world_size;
    row["start_time"] = segment.start_time;
    row["ended"] = segment.end.has_value();
    row["end_reason"] = text_of(segment.end ? segment.end->reason : std::string());
    row["live"] = segment.live;
    row["bytes"] = segment.bytes;
    row["records"] = segment.records;
    row["dropped"] = segment.dropped;
    row["lost"] = segment.lost;
    rows.append(row);
  }
  return rows;
}

// (folder, id) of each run in a log_dir with several, newest first; empty for any other path.
py::list list_runs(const std::string& path) {
  py::list runs;
  for (const record::RunEntry& run : record::runs_beside(path)) {
    runs.append(py::make_tuple(path_of(run.folder), path_of(run.id())));
  }
  return runs;
}

py::list read_damage(RunReader& reader) {
  {
    const WithoutGil no_gil;
    reader.find_damage();
  }
  py::list rows;
  for (const record::Damage& each : reader.damage()) {
    py::dict row;
    row["path"] = path_of(each.path);
    row["table"] = text_of(each.rows.table);
    row["first_row"] = each.rows.first_row;
    row["rows"] = each.rows.rows;
    rows.append(row);
  }
  return rows;
}

// Warns about a damaged part that was left out.
void warn_in_python(const std::string& line) {
  const WithGil held;
  constexpr Py_ssize_t kLevel = 2;  // the line that opened the run
  const py::str text = text_of(line);
  if (PyErr_WarnFormat(PyExc_UserWarning, kLevel, "%U", text.ptr()) != 0) {
    throw py::error_already_set();
  }
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
  module.def("runs_beside", &list_runs, py::arg("path"),
             "(folder, id) of several runs in a log_dir, newest first.");
  py::class_<RunReader> reader_type(module, "RunReader", "Joins the files of a run.");
  def_table<read_records>(reader_type, "records", "Columns by name; names are ids, -1 for none.");
  def_table<read_histograms>(reader_type, "histograms", "The same, a row for each bin.");
  def_table<read_blocks>(reader_type, "blocks", "The same, a row for each block.");
  reader_type
      .def(py::init([](const std::string& path) { return RunReader(path, warn_in_python); }),
           py::arg("path"))
      .def("names", &read_names, py::arg("dictionary"))
      .def("config_text", [](const RunReader& reader) { return text_of(reader.config_text()); })
      .def("environment", &read_environment)
      .def("segments", &read_segments, "A dict of each file, in order of rank and segment.")
      .def("damage", &read_damage, "Reads everything; a dict for each piece that is damaged.")
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
