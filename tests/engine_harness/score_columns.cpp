// The scorer on arrays of Python's, without an engine: tests hold it against the kernels' formulas,
// and perf/scoring.py times it.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

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
  BorrowedColumns(Array<Bytes> size, Array<Bytes> free_left, Array<Bytes> free_right,
                  Array<Nanos> last_access, Array<Nanos> cost, Array<Nanos> neighbourhood,
                  Array<std::int32_t> recomputes, Array<std::uint8_t> evictable,
                  Array<std::uint64_t> order)
      : size_(size),
        free_left_(free_left),
        free_right_(free_right),
        last_access_(last_access),
        cost_(cost),
        neighbourhood_(neighbourhood),
        recomputes_(recomputes),
        evictable_(evictable),
        order_(order) {
    for (py::ssize_t other :
         {free_left.size(), free_right.size(), last_access.size(), cost.size(),
          neighbourhood.size(), recomputes.size(), evictable.size(), order.size()}) {
      if (other != size.size()) throw std::invalid_argument("columns differ in their lengths");
    }
  }

  ColumnsView view() const { return view(evictable_.data()); }
  ColumnsView view(const std::uint8_t* evictable) const {
    return {.count = static_cast<std::size_t>(size_.size()),
            .size = size_.data(),
            .free_left = free_left_.data(),
            .free_right = free_right_.data(),
            .last_access = last_access_.data(),
            .cost = cost_.data(),
            .neighbourhood = neighbourhood_.data(),
            .recomputes = recomputes_.data(),
            .evictable = evictable,
            .order = order_.data()};
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

  // Of perf/scoring.py: seconds of choosing `times` times: by the scorer, row after row, or where
  // `image` is not empty by CUDA device 0.
  double time_choices(const Heuristic& heuristic, Nanos clock, int times, bool by_row,
                      const std::string& image) const {
    if (!image.empty()) return time_device(heuristic, clock, times, image);
    Scorer scorer(heuristic);
    std::int64_t chosen = scorer.choose(view(), clock).row;  // Its scratch memory is there then.
    auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) {
      if (!by_row) {
        chosen += scorer.choose(view(), clock + i).row;
        continue;
      }
      Least least = scorer.least();
      for (std::size_t row = 0; row < view().count; ++row) {
        if (!view().evictable[row]) continue;
        least.consider(static_cast<std::int64_t>(row), view().order[row],
                       scorer.terms(view(), row, clock + i));
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
    for (int i = 0; i < times; ++i) choose(clock + i);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  LooseColumns loose(const RowMemory& get_memory) const {
    LooseColumns copy(get_memory, view().count);
    const auto fill = [](auto* to, const auto& from) { std::copy_n(from.data(), from.size(), to); };
    fill(copy.size, size_), fill(copy.free_left, free_left_), fill(copy.free_right, free_right_);
    fill(copy.last_access, last_access_), fill(copy.cost, cost_);
    fill(copy.neighbourhood, neighbourhood_), fill(copy.order, order_);
    fill(copy.recomputes, recomputes_), fill(copy.evictable, evictable_);
    return copy;
  }

  const Array<Bytes> size_, free_left_, free_right_;
  const Array<Nanos> last_access_, cost_, neighbourhood_;
  const Array<std::int32_t> recomputes_;
  const Array<std::uint8_t> evictable_;
  const Array<std::uint64_t> order_;
};

}  // namespace

void bind_score_columns(py::module_& m) {
  using namespace py::literals;
  py::class_<BorrowedColumns>(m, "ScoreColumns")
      .def(py::init<Array<Bytes>, Array<Bytes>, Array<Bytes>, Array<Nanos>, Array<Nanos>,
                    Array<Nanos>, Array<std::int32_t>, Array<std::uint8_t>, Array<std::uint64_t>>(),
           py::kw_only(), "size"_a, "free_left"_a, "free_right"_a, "last_access"_a, "cost"_a,
           "neighbourhood"_a, "recomputes"_a, "evictable"_a, "order"_a)
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
