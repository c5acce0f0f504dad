// RowLists: one vector of rows for each table of a list of tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

namespace telens::record {

// Calls use.operator()<Row>() for each type of a std::tuple, in order.
template <typename Rows, typename Use>
constexpr void for_each_type(Use use) {
  [&]<typename... Each>(std::tuple<Each...>*) {
    (use.template operator()<Each>(), ...);
  }(static_cast<Rows*>(nullptr));
}

template <typename Rows>
class RowLists;

template <typename... Rows>
class RowLists<std::tuple<Rows...>> {
 public:
  template <typename Row>
  std::vector<Row>& of() {
    return std::get<std::vector<Row>>(lists_);
  }
  template <typename Row>
  const std::vector<Row>& of() const {
    return std::get<std::vector<Row>>(lists_);
  }

  // Calls use(rows) for every list.
  template <typename Use>
  void for_each(Use use) {
    (use(of<Rows>()), ...);
  }
  template <typename Use>
  void for_each(Use use) const {
    (use(of<Rows>()), ...);
  }

  void clear() {
    for_each([](auto& rows) { rows.clear(); });
  }

 private:
  std::tuple<std::vector<Rows>...> lists_;
};

}  // namespace telens::record
