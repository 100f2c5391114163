// What an operator asks for that writes: where a recipe has read the old content of a storage, that
// content must last.
//
// A tracked storage gets a new value, and the old one lives on for its readers, without memory. A
// constant is written where it lies, so its readers get a copy or are computed first (constants.h).

#include <algorithm>
#include <utility>

#include "runtime/csrc/live/intercept/interception.h"

namespace dtr {
namespace {

// Whether two arguments lie over one memory through two storages. A replay could not lay them so.
bool share_memory(const TensorArguments& arguments) {
  c10::SmallVector<std::pair<std::uintptr_t, c10::StorageImpl*>, 8> begins;
  for (const TensorArgument& argument : arguments) {
    void* data = pointer_of(argument.storage).get();
    begins.emplace_back(reinterpret_cast<std::uintptr_t>(data), argument.storage);
  }
  std::sort(begins.begin(), begins.end());
  std::uintptr_t end = 0;
  c10::StorageImpl* last = nullptr;
  for (auto [begin, storage] : begins) {
    if (storage != last && begin < end) return true;
    end = std::max(end, begin + storage->nbytes());
    last = storage;
  }
  return false;
}

// The recipe reads the old content through every argument over this storage.
void read_everywhere(Call& call, OperatorCall& engaged, Value& constant, std::size_t at) {
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    if (call.arguments[i].storage != call.arguments[at].storage) continue;
    if (i != at) engaged.hold(constant);
    call.sources[i] = &constant;
  }
}

}  // namespace

void Interception::prepare_writes(Call& call, OperatorCall& engaged, Lock& lock) {
  bool versions = false, constants = false;
  for (TensorArgument& argument : call.arguments) {
    if (!argument.written) continue;
    Value* value = argument.value;
    if (value && value->movable()) {
      // Constant while it is written: recipes that read it get what was there as those of any
      // constant.
      session_.swap().note_movable(call, argument.storage);
      make_constant(call, engaged, *value);
    }
    if (argument.value && (call.info.fresh || argument.scratch)) {
      session_.swap().note_movable(call, argument.storage);
      freeze_written(argument, engaged);
    }
    if (argument.value) {
      disarm(argument.storage);  // Ours alone: a lazy clone's copies it before it is written.
      versions |= call.outweighs_state(session_.device(), argument.storage);
    }
    constants |= argument.writes_constant();
  }
  call.recording &= call.info.fresh || versions;  // Some result is worth recording.
  if (constants && call.recording) copy_written_constants(call, engaged, lock);
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    const TensorArgument& argument = call.arguments[i];
    const bool keeps = argument.written && !argument.value && !call.source(i);
    if (keeps) session_.constants().keep_content(argument.storage, lock);
  }
}

// What an operator writes beside its results gets no chain of recipes: each recipe would hold on to
// a batch. Of running statistics (operators.cpp) there is no copy either.
void Interception::freeze_written(TensorArgument& argument, OperatorCall& engaged) {
  Value* value = std::exchange(argument.value, nullptr);
  if (value->producer && value->home && value->resident()) session_.engine().freeze(*value);
  engaged.release(*value);
}

// The recipe of an operator that writes a constant must read what was there before: a copy, which
// only a small one is worth. record() gives the locks of the copies back.
void Interception::copy_written_constants(Call& call, OperatorCall& engaged, Lock& lock) {
  const auto too_large = [](const TensorArgument& argument) {
    return argument.writes_constant() && !copied_before_a_write(bytes_of(argument.storage));
  };
  call.recording = std::ranges::none_of(call.arguments, too_large) && !share_memory(call.arguments);
  if (!call.recording) return;
  call.sources.resize(call.arguments.size(), nullptr);
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    const TensorArgument& argument = call.arguments[i];
    if (!argument.writes_constant() || call.sources[i]) continue;
    Value& constant = session_.constants().of(argument.storage);
    engaged.hold(constant);
    session_.constants().give_copy(constant, lock);
    session_.constants().keep_content(argument.storage, lock);  // What lies over the same memory.
    read_everywhere(call, engaged, constant, i);
  }
}

// A buffer that is written over and over (a parameter that the program updates by hand) would keep
// a recipe for each write, and all that these read.
bool Interception::long_written(Value& value) {
  if (value.version >= kLongestWriteChain) return true;
  return value.version > 0 && session_.engine().histories().outweighed(value, 1);
}

}  // namespace dtr
