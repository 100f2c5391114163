// Binds `_core.Pool`: a pool for Python, which knows blocks by address. An address has no lifetime,
// so the object keeps the set of addresses that it handed out: a wrong or second free raises an
// error and corrupts nothing, and the blocks are freed with the object. The set is only touched
// under the GIL. The pool is called without it: a call may wait for the device, whose work may
// include a Python function, or for another thread that does so with the pool's lock.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <tuple>
#include <unordered_set>

#include "dtr_alloc/pool/csrc/pool.h"

namespace py = pybind11;

namespace dtr {
namespace {

std::unique_ptr<Arena> make_arena(const std::string& arena, Bytes address_space, int device,
                                  PageUses uses) {
  if (arena == "host") return make_host_arena(address_space);
  if (arena == "virtual") return make_virtual_arena(address_space);
  if (arena == "cuda") return make_cuda_arena(address_space, device, uses);
  throw std::invalid_argument("arena \"" + arena +
                              "\" is unknown: \"host\", \"cuda\" or \"virtual\"");
}

class PyPool {
 public:
  PyPool(Bytes budget, const std::string& arena, Bytes address_space, int device, bool rdma,
         bool exportable)
      : pool_(Pool::create(make_arena(arena, address_space, device, {rdma, exportable}), budget)) {}

  ~PyPool() {
    const py::gil_scoped_release release;
    Pool* pool = pool_.get();
    pool_.reset();
    for (const std::uintptr_t address : addresses_) pool->free(find(pool, address));
  }

  std::optional<std::uintptr_t> allocate(Bytes size, Fit fit, Stream stream) {
    std::uintptr_t address = 0;
    {
      const py::gil_scoped_release release;
      const Block* block = pool_->allocate(size, fit, stream);
      if (block == nullptr) return std::nullopt;
      address = reinterpret_cast<std::uintptr_t>(pool_->data(block));
    }
    addresses_.insert(address);
    return address;
  }

  void free(std::uintptr_t address) {
    Block* block = at(address);
    addresses_.erase(address);
    const py::gil_scoped_release release;
    pool_->free(block);
  }

  void record_stream(std::uintptr_t address, Stream stream) {
    Block* block = at(address);
    const py::gil_scoped_release release;
    pool_->record_stream(block, stream);
  }

  std::pair<Bytes, Bytes> free_neighbours(std::uintptr_t address) const {
    const Block* block = at(address);
    const py::gil_scoped_release release;
    return pool_->free_neighbours(block);
  }

  std::vector<std::tuple<std::uintptr_t, Bytes, bool>> snapshot() const {
    std::vector<std::tuple<std::uintptr_t, Bytes, bool>> rows;
    for (const Block& block : pool_->snapshot()) {
      rows.emplace_back(pool_->arena().base() + block.offset, block.size, block.free);
    }
    return rows;
  }

  Pool& pool() const { return *pool_; }

 private:
  static Block* find(const Pool* pool, std::uintptr_t address) {
    return pool->find(reinterpret_cast<const void*>(address));
  }

  Block* at(std::uintptr_t address) const {
    if (!addresses_.contains(address)) {
      throw std::invalid_argument("no live block of this pool starts at address " +
                                  std::to_string(address) +
                                  ": it was freed before, or never allocated here");
    }
    return find(pool_.get(), address);
  }

  Pool::Handle pool_;
  std::unordered_set<std::uintptr_t> addresses_;
};

// Binds a member of the pool as one of PyPool.
template <class Result, class Class, class... Arguments>
auto of_pool(Result (Class::*member)(Arguments...)) {
  return [member](PyPool& self, Arguments... arguments) {
    return (self.pool().*member)(arguments...);
  };
}
template <class Result, class Class>
auto of_pool(Result (Class::*member)() const) {
  return [member](const PyPool& self) { return (self.pool().*member)(); };
}

}  // namespace

void bind_pool(py::module_& m) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;

  m.def("host_pages_move", &host_pages_move);
  m.attr("LARGEST_BUDGET") = kLargestBudget;
  m.def("usual_addresses", &usual_addresses);
  py::class_<PoolStats>(m, "PoolStats")
      .def_readonly("budget", &PoolStats::budget)
      .def_readonly("live", &PoolStats::live)
      .def_readonly("peak", &PoolStats::peak)
      .def_readonly("committed", &PoolStats::committed)
      .def_readonly("largest_hole", &PoolStats::largest_hole)
      .def_readonly("external_fragmentation", &PoolStats::external_fragmentation)
      .def_readonly("live_blocks", &PoolStats::live_blocks)
      .def_readonly("allocations", &PoolStats::allocations)
      .def_readonly("frees", &PoolStats::frees)
      .def_readonly("failures", &PoolStats::failures)
      .def_readonly("remaps", &PoolStats::remaps)
      .def_readonly("quarantined", &PoolStats::quarantined)
      .def_readonly("stream_waits", &PoolStats::stream_waits)
      .def_readonly("allocated", &PoolStats::allocated)
      .def_readonly("peak_committed", &PoolStats::peak_committed)
      .def_readonly("peak_blocks", &PoolStats::peak_blocks);

  py::enum_<Fit>(m, "Fit")
      .value("committed", Fit::kCommitted)
      .value("remap", Fit::kRemap)
      .value("beyond", Fit::kBeyond);

  py::class_<PyPool>(m, "Pool")
      .def(py::init<Bytes, const std::string&, Bytes, int, bool, bool>(), py::arg("budget"),
           py::arg("arena"), py::arg("address_space"), py::arg("device") = 0,
           py::arg("rdma") = false, py::arg("exportable") = false)
      .def("allocate", &PyPool::allocate, py::arg("size"), py::arg("fit") = Fit::kBeyond,
           py::arg("stream") = 0)
      .def("free", &PyPool::free, py::arg("address"))
      .def("record_stream", &PyPool::record_stream, py::arg("address"), py::arg("stream"))
      .def("retire_stream", of_pool(&Pool::retire_stream), py::arg("stream"), Unlocked())
      .def("gather_streams", of_pool(&Pool::gather_streams), py::arg("stream"), Unlocked())
      .def("spread_stream", of_pool(&Pool::spread_stream), py::arg("stream"), Unlocked())
      .def("set_limit", of_pool(&Pool::set_limit), py::arg("limit"), Unlocked())
      .def("begin_quarantine", of_pool(&Pool::begin_quarantine), Unlocked())
      .def("end_quarantine", of_pool(&Pool::end_quarantine), Unlocked())
      .def("free_neighbours", &PyPool::free_neighbours, py::arg("address"))
      .def("snapshot", &PyPool::snapshot, Unlocked())
      .def("stats", of_pool(&Pool::stats), Unlocked())
      .def("trim", of_pool(&Pool::trim), Unlocked())
      .def("reset_peak", of_pool(&Pool::reset_peak), Unlocked())
      .def("check", of_pool(&Pool::check), Unlocked())
      .def(
          "holds",
          [](const PyPool& self, std::uintptr_t address) {
            return Pool::owner_of(reinterpret_cast<const void*>(address)) == &self.pool();
          },
          py::arg("address"))
      .def_property_readonly("budget", of_pool(&Pool::budget))
      .def_property_readonly("arena", [](const PyPool& self) { return self.pool().arena().name(); })
      .def_property_readonly("page", [](const PyPool& self) { return self.pool().arena().page(); })
      .def_property_readonly("address_space",
                             [](const PyPool& self) { return self.pool().arena().capacity(); })
      .def_property_readonly(  // For the tests' compiled modules.
          "pointer",
          [](const PyPool& self) { return reinterpret_cast<std::uintptr_t>(&self.pool()); })
      .def_static(
          "is_owned",
          [](std::uintptr_t address) {
            return Pool::owner_of(reinterpret_cast<const void*>(address)) != nullptr;
          },
          py::arg("address"));
}

}  // namespace dtr
