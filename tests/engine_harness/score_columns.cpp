// The scorer on arrays of Python's, without an engine: tests hold it against the kernels' formulas,
// and perf/choice/scoring.py times it.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/csrc/bindings/nanos_caster.h"
#include "runtime/csrc/policy/device_scorer.h"
#include "runtime/csrc/policy/scorer.h"

namespace py = pybind11;

namespace dtr {
namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

// Rows that belong to somebody else's arrays.
class BorrowedColumns {
 public:
  explicit BorrowedColumns(const py::kwargs& given) {
#define DTR_TAKE(type, name, initial) name##_ = given[#name].cast<Array<type>>();
    DTR_SCORE_COLUMNS(DTR_TAKE)
#undef DTR_TAKE
#define DTR_LENGTH(type, name, initial) name##_.size(),
    for (py::ssize_t length : {DTR_SCORE_COLUMNS(DTR_LENGTH)}) {
#undef DTR_LENGTH
      if (length != size_.size()) throw std::invalid_argument("columns differ in their lengths");
    }
  }

  ColumnsView view() const { return view(evictable_.data()); }
  ColumnsView view(const std::uint8_t* evictable) const {
    ColumnsView view{.count = static_cast<std::size_t>(size_.size())};
#define DTR_PLACE(type, name, initial) view.name = name##_.data();
    DTR_SCORE_COLUMNS(DTR_PLACE)
#undef DTR_PLACE
    view.evictable = evictable;
    return view;
  }

  Array<double> scores(const Heuristic& heuristic, Nanos clock) const {
    Array<double> scores(size_.size());
    Scorer(heuristic).score(view(), clock, scores.mutable_data());
    return scores;
  }

  // Evicts one after the other until they have `bytes`: the rows, in order. Where `image` is not
  // empty, CUDA device 0 scores, and whoever it leaves to the host is an error.
  Array<std::int64_t> victims(const Heuristic& heuristic, Nanos clock, Bytes bytes,
                              const std::string& image) const {
    return image.empty() ? victims(heuristic, clock, bytes)
                         : victims_by_device(heuristic, clock, bytes, image);
  }
  Array<std::int64_t> victims(const Heuristic& heuristic, Nanos clock, Bytes bytes) const {
    Scorer scorer(heuristic);
    std::vector<std::uint8_t> evictable(evictable_.data(), evictable_.data() + evictable_.size());
    std::vector<std::int64_t> victims;
    while (bytes > 0) {
      std::int64_t row = scorer.choose(view(evictable.data()), clock).row;
      if (row == kNoRow) break;
      victims.push_back(row);
      evictable[row] = 0;
      bytes -= size_.data()[row];
    }
    return Array<std::int64_t>(static_cast<py::ssize_t>(victims.size()), victims.data());
  }

  Array<std::int64_t> victims_by_device(const Heuristic& heuristic, Nanos clock, Bytes bytes,
                                        const std::string& image) const {
    DeviceScorer device(0, image, heuristic, ScorerPlace::kDevice);
    LooseColumns columns = loose([&](std::size_t room) { return device.memory(room); });
    Scorer scorer(heuristic);
    std::vector<std::int64_t> victims;
    while (bytes > 0) {
      auto choice = device.choose(scorer, columns.view(view().count), clock);
      if (!choice) throw std::runtime_error("the device did not answer");
      if (choice->row == kNoRow) break;
      victims.push_back(choice->row);
      columns.evictable[choice->row] = 0;
      bytes -= columns.size[choice->row];
    }
    return Array<std::int64_t>(static_cast<py::ssize_t>(victims.size()), victims.data());
  }

  // Of perf/choice/scoring.py: seconds of choosing `times` times: by the scorer, row after row, or
  // where `image` is not empty by CUDA device 0.
  double time_choices(const Heuristic& heuristic, Nanos clock, int times, bool by_row,
                      const std::string& image) const {
    if (!image.empty()) return time_device(heuristic, clock, times, image);
    Scorer scorer(heuristic);
    std::int64_t chosen = scorer.choose(view(), clock).row;  // Its scratch memory is there then.
    auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) {
      if (!by_row) {
        chosen += scorer.choose(view(), clock + Nanos{i}).row;
        continue;
      }
      Least least = scorer.least();
      for (std::size_t row = 0; row < view().count; ++row) {
        if (!view().evictable[row]) continue;
        least.consider(static_cast<std::int64_t>(row), view().order[row],
                       scorer.terms(view(), row, clock + Nanos{i}));
      }
      chosen += least.row();
    }
    std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    if (chosen < 0) throw std::logic_error("there was nothing to choose from");
    return passed.count();
  }
  double time_device(const Heuristic& heuristic, Nanos clock, int times,
                     const std::string& image) const {
    DeviceScorer device(0, image, heuristic, ScorerPlace::kDevice);
    LooseColumns columns = loose([&](std::size_t room) { return device.memory(room); });
    Scorer scorer(heuristic);
    const auto choose = [&](Nanos now) {
      if (!device.choose(scorer, columns.view(view().count), now)) {
        throw std::runtime_error("the device did not answer");
      }
    };
    choose(clock);
    auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) choose(clock + Nanos{i});
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  LooseColumns loose(const RowMemory& get_memory) const {
    LooseColumns copy(get_memory, view().count);
#define DTR_COPY(type, name, initial) std::copy_n(name##_.data(), name##_.size(), copy.name);
    DTR_SCORE_COLUMNS(DTR_COPY)
#undef DTR_COPY
    return copy;
  }

#define DTR_ARRAY(type, name, initial) Array<type> name##_;
  DTR_SCORE_COLUMNS(DTR_ARRAY)
#undef DTR_ARRAY
};

}  // namespace

void bind_score_columns(py::module_& m) {
  using namespace py::literals;
  py::class_<BorrowedColumns>(m, "ScoreColumns")
      .def(py::init<const py::kwargs&>())
      .def("scores", &BorrowedColumns::scores, "heuristic"_a, "clock"_a)
      .def("time_choices", &BorrowedColumns::time_choices, "heuristic"_a, "clock"_a, "times"_a,
           "by_row"_a, "image"_a = "")
      .def("victims",
           py::overload_cast<const Heuristic&, Nanos, Bytes, const std::string&>(
               &BorrowedColumns::victims, py::const_),
           "heuristic"_a, "clock"_a, "bytes"_a, "image"_a = "");
  m.def("crossover", &crossover, "host_row"_a, "few"_a, "device_few"_a, "many"_a, "device_many"_a);
  m.attr("never") = kNever;
}

}  // namespace dtr
