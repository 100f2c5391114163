// The second tier of a device's pool, for tests that order its copies by hand. It knows a room by a
// number.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <unordered_map>

#include "dtr_alloc/pool/csrc/tier.h"

namespace py = pybind11;

namespace dtr {
namespace {

class HostTier {
 public:
  // `pool` is one of `dtr_alloc._core`.
  HostTier(const py::object& pool, int device, Bytes bytes)
      : tier_(make_host_tier(*reinterpret_cast<Pool*>(pool.attr("pointer").cast<std::uintptr_t>()),
                             device, bytes)) {}

  ~HostTier() {
    for (auto& [number, room] : rooms_) tier_->give_back(room);
  }

  std::optional<int> reserve(Bytes bytes) {
    const Tier::Room room = tier_->reserve(bytes);
    if (room.block == nullptr) return std::nullopt;
    rooms_[++last_] = room;
    return last_;
  }

  void give_back(int number) {
    tier_->give_back(rooms_.at(number));
    rooms_.erase(number);
  }

  void write(int number, std::uintptr_t from, Bytes bytes, std::optional<std::int64_t> made) {
    tier_->write(rooms_.at(number), reinterpret_cast<const void*>(from), bytes,
                 made ? Nanos{*made} : Tier::kUnknown);
  }

  void begin_read(int number, std::uintptr_t to, Bytes bytes) {
    tier_->begin_read(rooms_.at(number), reinterpret_cast<void*>(to), bytes);
  }

  void finish_read(int number, std::uintptr_t to, Stream reader) {
    tier_->finish_read(rooms_.at(number), reinterpret_cast<void*>(to), reader);
  }

  Tier& tier() { return *tier_; }

 private:
  const std::unique_ptr<Tier> tier_;
  std::unordered_map<int, Tier::Room> rooms_;
  int last_ = 0;
};

}  // namespace

void bind_host_tier(py::module_& m) {
  py::class_<HostTier>(m, "HostTier")
      .def(py::init<const py::object&, int, Bytes>(), py::arg("pool"), py::arg("device"),
           py::arg("bytes"), py::keep_alive<1, 2>())
      .def("reserve", &HostTier::reserve, py::arg("bytes"))
      .def("give_back", &HostTier::give_back, py::arg("room"))
      .def("write", &HostTier::write, py::arg("room"), py::arg("address"), py::arg("bytes"),
           py::arg("made") = py::none())
      .def(
          "mark",
          [](HostTier& self, Stream stream, std::int64_t now) {
            self.tier().mark(stream, Nanos{now});
          },
          py::arg("stream"), py::arg("now"))
      .def("begin_read", &HostTier::begin_read, py::arg("room"), py::arg("address"),
           py::arg("bytes"))
      .def("finish_read", &HostTier::finish_read, py::arg("room"), py::arg("address"),
           py::arg("reader"))
      .def(
          "arrives_on",
          [](HostTier& self, Stream reader) { return self.tier().arrives_on(reader); },
          py::arg("reader"))
      .def("let_overwrite", [](HostTier& self) { self.tier().let_overwrite(); })
      .def("used", [](HostTier& self) { return self.tier().used(); })
      .def("times",
           [](HostTier& self) {
             const Tier::Times times = self.tier().times();
             return std::pair(times.busy.count(), times.waited.count());
           })
      .def("speed", [](HostTier& self) {
        const Tier::Speed speed = self.tier().speed();
        return std::pair(speed.nanoseconds_per_byte, speed.latency.count());
      });
}

}  // namespace dtr
