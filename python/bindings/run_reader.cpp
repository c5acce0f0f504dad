#include "python/bindings/module.h"

#include <ATen/ops/from_blob.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/bindings/gil.h"
#include "record/rows/table.h"
#include "record/run_reader.h"

namespace telens::python {

namespace py = pybind11;

namespace {

using record::Dictionary;
using record::RunReader;

// A column of the result. It grows in pieces and becomes a tensor, which has numpy().
template <typename T>
class Column {
 public:
  void add(T value) { values_.push_back(value); }
  std::size_t size() const { return values_.size(); }
  // Empties the column. The tensor owns the values: a table of millions of rows is in memory once.
  at::Tensor take() {
    const auto values = std::make_shared<std::vector<T>>(std::exchange(values_, {}));
    return at::from_blob(
        values->data(), {static_cast<std::int64_t>(values->size())}, [values](void*) {},
        c10::CppTypeToScalarType<T>::value);
  }

 private:
  std::vector<T> values_;
};

// A list of values for each column that a table's struct describes, in the struct's types.
template <typename Columns>
struct ListsOf;
template <typename... Columns>
struct ListsOf<std::tuple<Columns...>> {
  template <typename Row, typename Member, typename Stored>
  static Column<Member> list(const record::Column<Row, Member, Stored>&);
  using Type = std::tuple<decltype(list(std::declval<Columns>()))...>;
};

// The rows of a table, column by column.
template <typename Row>
class TableColumns {
 public:
  void add(int of_rank, const Row& row) {
    rank_.add(of_rank);
    each([&](auto& list, const auto& column) { list.add(row.*column.member); });
  }
  std::size_t size() const { return rank_.size(); }
  // Empties the column.
  py::dict take() {
    py::dict columns;
    columns["rank"] = rank_.take();
    each([&](auto& list, const auto& column) { columns[column.name] = list.take(); });
    return columns;
  }

 private:
  using Columns = std::remove_cv_t<decltype(record::kColumns<Row>)>;
  using Lists = typename ListsOf<Columns>::Type;

  template <typename Use>
  void each(Use use) {
    each(lists_, use, std::make_index_sequence<std::tuple_size_v<Lists>>());
  }
  template <typename SomeLists, typename Use, std::size_t... index>
  static void each(SomeLists& lists, Use& use, std::index_sequence<index...>) {
    (use(std::get<index>(lists), std::get<index>(record::kColumns<Row>)), ...);
  }

  Column<std::int32_t> rank_;
  Lists lists_;
};

// Maps each column of a table that holds ids to the dictionary of those ids.
template <typename Row>
py::dict names_in() {
  py::dict names;
  record::for_each_name<Row>([&](const auto& column) { names[column.name] = *column.dictionary; });
  return names;
}

// Columns, the dictionaries of their ids, and the code that fills the columns.
// The rows may not fit into memory. If a Python function is given, it receives the rows in pieces
// and no rows remain at the end.
using UsePiece = std::optional<py::function>;
constexpr std::size_t kRowsOfPiece = 1 << 20;

// Passes the columns to the function when they hold a full piece. Called without the GIL.
template <typename Take>
void hand_over(const UsePiece& use, std::size_t rows, std::size_t enough, Take take) {
  if (!use || rows < enough) return;
  const WithGil held;
  (*use)(take());
}

py::tuple read_records(const RunReader& reader, const record::RecordQuery& query,
                       const UsePiece& use) {
  TableColumns<record::Record> columns;
  const auto take = [&] { return columns.take(); };
  {
    const WithoutGil no_gil;
    reader.read(query, [&](int rank, std::span<const record::Record> records) {
      for (const record::Record& each : records) columns.add(rank, each);
      hand_over(use, columns.size(), kRowsOfPiece, take);
    });
    hand_over(use, columns.size(), 1, take);
  }
  return py::make_tuple(columns.take(), names_in<record::Record>());
}

// Appends a row for each bin.
py::tuple read_histograms(const RunReader& reader, const record::RecordQuery& query,
                          const UsePiece& use) {
  TableColumns<record::Record> of;
  Column<std::int64_t> bin, count;
  const auto take = [&] {
    py::dict columns = of.take();
    columns.attr("pop")("value");  // the number of elements of the whole histogram
    columns["bin"] = bin.take();
    columns["count"] = count.take();
    return columns;
  };
  {
    const WithoutGil no_gil;
    reader.read_histograms(query, [&](int rank, const record::Record& record,
                                      std::span<const record::HistogramBin> bins) {
      for (const record::HistogramBin& each : bins) {
        of.add(rank, record);
        bin.add(each.bin);
        count.add(static_cast<std::int64_t>(each.count));
      }
      hand_over(use, of.size(), kRowsOfPiece, take);
    });
    hand_over(use, of.size(), 1, take);
  }
  return py::make_tuple(take(), names_in<record::Record>());
}

// Reads a table that a session records.
py::tuple read_table(const RunReader& reader, const std::string& table,
                     const record::RecordQuery& query, const UsePiece& use) {
  std::optional<py::tuple> result;
  record::for_each_type<record::RecordedRows>([&]<typename Row>() {
    if (Row::kTable.name != table) return;
    TableColumns<Row> columns;
    const auto take = [&] { return columns.take(); };
    {
      const WithoutGil no_gil;
      reader.read_rows(query, [&](const Row& row) {
        columns.add(row.rank, row);
        hand_over(use, columns.size(), kRowsOfPiece, take);
      });
      hand_over(use, columns.size(), 1, take);
    }
    result = py::make_tuple(columns.take(), names_in<Row>());
  });
  if (!result) raise<UsageError>("RunReader: unknown table '{}'", table);
  return *result;
}

py::list table_names() {
  py::list names;
  record::for_each_type<record::RecordedRows>(
      [&]<typename Row>() { names.append(std::string(Row::kTable.name)); });
  return names;
}

// Decodes text of a file; a byte that is not valid UTF-8 becomes "\xff". A layer may have any name,
// and an error here would make its numbers unreadable.
py::str to_text(const std::string& text) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

py::str get_path(const std::string& path) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
}

py::list read_names(const RunReader& reader, Dictionary dictionary) {
  py::list names;
  for (const std::string& name : reader.names(dictionary)) names.append(to_text(name));
  return names;
}

py::list read_environment(const RunReader& reader) {
  py::list rows;
  for (const auto& [name, value] : reader.environment()) {
    rows.append(py::make_tuple(to_text(name), to_text(value)));
  }
  return rows;
}

py::list read_segments(const RunReader& reader) {
  py::list rows;
  for (const record::Segment& segment : reader.segments()) {
    py::dict row;
    row["path"] = get_path(segment.path);
    row["rank"] = segment.rank;
    row["segment"] = segment.segment;
    row["run_id"] = to_text(segment.run_id);
    row["telens_version"] = to_text(segment.telens_version);
    row["world_size"] = segment.world_size;
    row["start_time"] = segment.start_time;
    row["ended"] = segment.end.has_value();
    row["end_reason"] = to_text(segment.end ? segment.end->reason : std::string());
    row["live"] = segment.live;
    row["bytes"] = segment.bytes;
    row["records"] = segment.records;
    row["dropped"] = segment.dropped;
    row["lost"] = segment.lost;
    rows.append(row);
  }
  return rows;
}

// Returns (folder, id) pairs of the runs in a log_dir that has several, newest first; empty for any
// other path.
py::list list_runs(const std::string& path) {
  py::list runs;
  for (const record::RunEntry& run : record::list_runs(path)) {
    runs.append(py::make_tuple(get_path(run.folder), get_path(run.id())));
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
    row["path"] = get_path(each.path);
    row["table"] = to_text(each.rows.table);
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
  const py::str text = to_text(line);
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
             "Returns (folder, id) pairs of the runs in a log_dir that has several, newest first.");
  py::class_<record::RecordQuery>(module, "RecordQuery", "Which rows to read, by ids of names.")
      .def(py::init([](record::RecordQuery::Ids layers, record::RecordQuery::Ids tensors,
                       record::RecordQuery::Ids gemms, record::RecordQuery::Ids statistics,
                       std::int64_t first_iteration, std::int64_t last_iteration,
                       std::optional<int> rank) {
             return record::RecordQuery{std::move(layers),
                                        std::move(tensors),
                                        std::move(gemms),
                                        std::move(statistics),
                                        first_iteration,
                                        last_iteration,
                                        rank};
           }),
           py::kw_only(), py::arg("layers"), py::arg("tensors"), py::arg("gemms"),
           py::arg("statistics"), py::arg("first_iteration"), py::arg("last_iteration"),
           py::arg("rank"));
  py::class_<RunReader>(module, "RunReader", "Joins the files of a run.")
      .def(py::init([](const std::string& path) { return RunReader(path, warn_in_python); }),
           py::arg("path"))
      .def_static("tables", &table_names, "Names of the tables that table() reads.")
      .def("records", &read_records, py::arg("query"), py::arg("use") = py::none(),
           "Returns columns by name and the dictionaries of id columns; -1 means no name. With "
           "a function, use(columns) for pieces of about a million rows, and no rows.")
      .def("histograms", &read_histograms, py::arg("query"), py::arg("use") = py::none(),
           "Like the above, with a row per bin.")
      .def("table", &read_table, py::arg("table"), py::arg("query"), py::arg("use") = py::none(),
           "Like the above, for another table.")
      .def("names", &read_names, py::arg("dictionary"))
      .def("config_text", [](const RunReader& reader) { return to_text(reader.config_text()); })
      .def("environment", &read_environment)
      .def("segments", &read_segments, "Returns a dict for each file, ordered by rank and segment.")
      .def("damage", &read_damage, "Reads everything; a dict for each piece that is damaged.");
}

}  // namespace telens::python
