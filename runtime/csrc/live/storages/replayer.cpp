#include "runtime/csrc/live/storages/replayer.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "runtime/csrc/engine/rules.h"
#include "runtime/csrc/graph/owner.h"
#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/machine/silence.h"
#include "runtime/csrc/live/machine/unlocked.h"

namespace dtr {
namespace {

// Torch's device allocator must not be given memory back under the lock
// (dtr_alloc/pool/csrc/memory.h).
void keep_until_open(c10::StorageImpl* storage, const Memory& memory, StorageTable& storages) {
  if (!storage || !memory.is_torchs()) return;
  storages.bury(share(storage));
}

// What a replay lends to another library's operator or a compiled graph, which may keep arguments,
// as may the traceback of an error. Nobody reads a value's memory through them once the replay is
// over.
class Lent {
 public:
  explicit Lent(c10::SmallVector<c10::Storage, 8> storages) : storages_(std::move(storages)) {}
  ~Lent() {
    for (const c10::Storage& storage : storages_) {
      if (storage.use_count() > 1) take_back(*storage.unsafeGetStorageImpl());
    }
  }
  Lent(const Lent&) = delete;

 private:
  static void take_back(c10::StorageImpl& storage) {
    const at::DataPtr taken =
        std::exchange(pointer_of(&storage), at::DataPtr(nullptr, storage.device()));
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
        "this tensor was given to an operator that dtr_alloc ran again, and is over: an operator "
        "that remembers an argument must keep a clone()");
  }
  const c10::SmallVector<c10::Storage, 8> storages_;
};

// Another library's operator, or a compiled graph.
bool may_keep_arguments(const OperatorInfo& info) { return info.others || info.listed; }

bool seen_by_python(const at::Tensor& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
}

}  // namespace

// What the operator gets, of which copies are the replay's own. They end so where it fails, too.
class Replayer::Arguments {
 public:
  explicit Arguments(Replayer& replayer) : replayer_(replayer) {}
  ~Arguments() { bury(); }
  Arguments(const Arguments&) = delete;

  Storages& operator*() { return storages_; }
  void bury() {
    for (const c10::Storage& storage : storages_) {
      keep_until_open(storage.unsafeGetStorageImpl(), replayer_.memory_, replayer_.storages_);
    }
    storages_.clear();
  }

 private:
  Replayer& replayer_;
  Storages storages_;
};

// Of a tensor that Python has seen, what Python has dies with it, under Python's lock.
Replayer::Burial::~Burial() {
  for (at::Tensor& result : results) {
    if (seen_by_python(result)) storages.bury(std::move(result));
  }
}

c10::Storage Replayer::over(at::DataPtr&& data, Bytes size) const {
  return c10::Storage(c10::Storage::use_byte_size_t(), size, std::move(data), device_.allocator,
                      true);
}

// Appends the storage that the operator reads, and perhaps writes, at place `use`.
void Replayer::lay_over(Op& op, std::uint32_t use, Storages& storages, Copies& copies) {
  const Recipe& recipe = Recipe::of(op);
  const Use* uses = op.uses();
  Value& value = *uses[use].value;
  bool written = false;
  std::int32_t places = 0;
  for (std::uint32_t i = 0; recipe.writes() && i < op.use_count; ++i) {
    if (uses[i].value != &value) continue;
    if (i < use && places == 0) return storages.push_back(storages[i]);  // The same memory again.
    written |= recipe.writes(i);
    ++places;
  }
  void* content = storages_.data_of(value);
  TORCH_CHECK((content && !value.absent) || value.size == 0,
              "a storage that ", recipe.info().name,
              " read was resized behind PyTorch's dispatcher, as FSDP does with a layer's "
              "parameters; its result cannot be recomputed: call dtr_alloc.pin(tensor) on it within "
              "the layer, or fully_shard with reshard_after_forward=False");
  if (!written) {
    storages.emplace_back(c10::Storage::use_byte_size_t(), value.size,
                          at::DataPtr(content, device_.device));
  } else if (takes_buffer(value, places)) {
    at::DataPtr buffer = storages_.ordinary(block_of(value));
    engine_.reuse_buffer(value);
    storages.push_back(over(std::move(buffer), value.size));
  } else {
    copies.push_back({storages.size(), content});
    storages.push_back(over(at::DataPtr(nullptr, device_.device), value.size));
  }
}

// Gives the replay's own storages their memory: what may be any, and copies of what is written.
void Replayer::make_own(const Recipe& recipe, Storages& storages, const Copies& copies,
                        Lock& lock) {
  const auto scratch = recipe.scratch();
  if (copies.empty() && scratch.empty()) return;
  Unlocked open(lock);
  for (Bytes size : scratch) storages.push_back(over(storages_.new_memory(size), size));
  for (const Copy& copy : copies) {
    c10::StorageImpl* storage = storages[copy.storage].unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(storages_.copy_of(copy.from, bytes_of(storage)));
  }
}

void Replayer::verify_constants(Op& op) const {
  for (std::uint32_t i = 0; i < op.use_count; ++i) {
    const Value& value = *op.uses()[i].value;
    if (value.constant() && !value.absent) detector_->verify(value, Recipe::of(op).info());
  }
}

// The results, then what it wrote. The lock is open.
Replayer::Results Replayer::run(Replay replay) {
  InOperator inside;
  const Silence silence(may_keep_arguments(*replay.info));
  RECORD_FUNCTION(c10::str("dtr::rematerialize(", replay.info->name, ")"),
                  c10::ArrayRef<const c10::IValue>(replay.stack.data(), replay.stack.size()));
  replay.run();
  Results results;
  c10::ArrayRef<c10::IValue> made = replay.stack;
  if (replay.info->listed) made = replay.stack.back().toListRef();
  for (const c10::IValue& result : made) {
    results.push_back(result.isTensor() ? result.toTensor() : at::Tensor());
  }
  for (at::Tensor& tensor : replay.written) results.push_back(std::move(tensor));
  return results;
}

Replayer::Results Replayer::replay(Op& op, Lock& lock) {
  const Recipe& recipe = Recipe::of(op);
  if (detector_) verify_constants(op);
  Arguments arguments(*this);
  Storages& storages = *arguments;
  Copies copies;
  for (std::uint32_t i = 0; i < op.use_count; ++i) lay_over(op, i, storages, copies);
  const Meanwhile replaying(InOperator::state.replaying, true);
  make_own(recipe, storages, copies, lock);
  Replay ready = recipe.prepare(storages, op.use_count, device_);
  Storages lent = may_keep_arguments(recipe.info()) ? std::exchange(storages, {}) : Storages();
  arguments.bury();
  std::optional<UnderWay::Alone> alone;
  std::optional<SwitchesPut> switches;
  if (const auto now = Switches::now(); now != ready.state.switches) {
    alone.emplace(under_way_, lock);
    switches.emplace(now, ready.state.switches);
  }
  Results results;
  {
    // A tensor that Python has seen takes Python's lock as it dies, and so does an error: what is
    // left of arguments goes before the lock is held again.
    Unlocked open(lock);
    const Lent given(std::move(lent));
    results = run(std::move(ready));
  }
  for (const at::Tensor& result : results) {
    keep_until_open(storage_of(result), memory_, storages_);
  }
  return results;
}

// What nobody lacks of a replay that Python has seen goes now, with its memory. What is left of the
// rest goes once the lock is open.
void Replayer::drop_what_nobody_lacks(Op& op, Results& results, Lock& lock) {
  Results unused;
  for (std::uint32_t i = 0; i < results.size(); ++i) {
    const Value* value = i < op.output_count ? op.outputs()[i] : nullptr;
    if (!value || value->resident()) unused.push_back(std::exchange(results[i], at::Tensor()));
  }
  if (unused.empty()) return;
  Unlocked open(lock);
  unused.clear();
}

// With several streams, a replay comes after all that they were given, and they go on after it: one
// may have made what it reads, another may read what it makes.
Bytes Replayer::recompute(Op& op, Lock& lock, const std::function<void()>& ran) {
  if (memory_.is_torchs() || storages_.has_dead_tensors()) {
    storages_.bury_with_lock_open(lock);  // What the last one left.
  }
  if (device_.work) memory_.meet_stream(device_.current_stream());
  if (memory_.many_streams()) memory_.gather_streams(device_.current_stream());
  Bytes bytes = 0;
  const OperatorInfo& info = Recipe::of(op).info();
  Burial made{replay(op, lock), storages_};
  ran();
  const Results& results = made.results;
  for (std::uint32_t i = 0; i < op.output_count; ++i) {
    const Value* value = op.outputs()[i];
    TORCH_CHECK(!value || value->resident() || results[i].defined(), info.name,
                " made no tensor when it ran again on the same arguments, and one at first; pin its "
                "results: dtr_alloc.pin(result)");
  }
  if (std::ranges::any_of(results, seen_by_python)) drop_what_nobody_lacks(op, made.results, lock);
  if (memory_.many_streams()) memory_.spread_stream(device_.current_stream());
  for (std::uint32_t i = 0; i < op.output_count; ++i) {
    Value* value = op.outputs()[i];
    if (!value || value->resident() || !results[i].defined()) continue;  // Or it went meanwhile.
    adopt(*value, storage_of(results[i]), info);
    bytes += value->size;
  }
  return bytes;
}

// The value takes the memory of the storage that a replay made.
void Replayer::adopt(Value& value, c10::StorageImpl* made, const OperatorInfo& by) {
  const bool fits = bytes_of(made) == value.size;
  auto block = fits ? storages_.adopt(made) : StorageTable::Adopted();
  TORCH_CHECK(!by.others || block, by.name,
              " made ", made->nbytes(), " bytes when it ran again on the same arguments, and ",
              value.size, " at first; pin its results: dtr_alloc.pin(result)");
  TORCH_INTERNAL_ASSERT(block,
                        "a replay of ", by.name, " made a storage of ",
                        made->nbytes(), " bytes, the first run one of ", value.size);
  repoint(made, {});
  storages_.fill(value, block.release());
}

// Only what the tensor shows is compared: bytes that no element covers are never initialised.
std::string Replayer::difference(Op& op, Lock& lock) {
  Results results = replay(op, lock);
  const std::string found = difference(op, results);
  Unlocked open(lock);
  results.clear();
  return found;
}

std::string Replayer::difference(Op& op, const Results& results) const {
  for (std::uint32_t i = 0; i < op.output_count; ++i) {
    const Value* value = op.outputs()[i];
    if (!value || !value->resident()) continue;
    const at::Tensor& again = results[i];
    if (!again.defined()) return c10::str(Recipe::of(op).info().name, ", output ", i);
    const auto* first = static_cast<const char*>(storages_.data_of(*value));
    const auto* second = static_cast<const char*>(pointer_of(storage_of(again)).get());
    const auto item = static_cast<std::int64_t>(again.element_size());
    for (std::int64_t n = 0; n < again.numel(); ++n) {
      std::int64_t rest = n, offset = again.storage_offset();
      for (std::int64_t d = again.dim(); d-- > 0;) {
        offset += rest % again.size(d) * again.stride(d);
        rest /= again.size(d);
      }
      if (std::memcmp(first + offset * item, second + offset * item, item) == 0) continue;
      return c10::str(Recipe::of(op).info().name, ", output ", i, ", element ", n);
    }
  }
  return "";
}

}  // namespace dtr
