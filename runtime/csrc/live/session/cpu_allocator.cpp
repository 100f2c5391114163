#include "runtime/csrc/live/session/cpu_allocator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include "runtime/csrc/live/machine/device.h"
#include "runtime/csrc/live/machine/guest_memory.h"
#include "runtime/csrc/live/machine/in_operator.h"
#include "runtime/csrc/live/machine/out_of_memory.h"
#include "runtime/csrc/live/machine/profiler.h"
#include "runtime/csrc/live/session/session.h"

namespace dtr {
namespace {

thread_local Stream host_stream = 0;
at::Allocator* ordinary = nullptr;  // Torch's, or another library's.

class CpuAllocator final : public at::Allocator {
 public:
  at::DataPtr allocate(std::size_t bytes) override {
    Session* session = Session::active();
    // Autograd's threads inherit the key from the scope's, and other threads may join. What the
    // rest make could not be evicted, so it is ordinary memory.
    if (!session || !session->device().device.is_cpu()) return ordinary->allocate(bytes);
    if (!Scope::records_this_thread()) {
      if (Scope::is_member()) session->notes().note_unseen(bytes);
      return ordinary->allocate(bytes);
    }
    return session->storages().device().ordinary(bytes ? allocate(*session, bytes) : nullptr);
  }

  // Serves memory from inside and from outside a scope alike.
  at::DeleterFnPtr raw_deleter() const override { return &any_deleter; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  // For torch's own code, outside of any operator, nobody else adds the advice.
  static void* allocate(Session& session, std::size_t bytes) {
    try {
      return session.requests().allocate(bytes, host_stream);
    } catch (const c10::OutOfMemoryError& error) {
      if (InOperator::state.depth > 0) throw;
      rethrow_with_advice(error, "");
    }
  }

  static void any_deleter(void* data) {
    if (Pool::owner_of(data) || GuestMemory::holds(data)) return scope_deleter(data);
    ordinary->raw_deallocate(data);
  }
};

Session* locked = nullptr;  // By the thread that forks. A scope may end meanwhile.

// A child must not inherit a lock from a thread that it does not have.
void lock_for_fork() {
  Session* const session = Session::active();
  if (session) session->lock_for_fork();
  GuestMemory::lock_all();
  locked = session;
}

void unlock_after_fork() {
  GuestMemory::unlock_all();
  if (locked) locked->unlock_after_fork();
}

}  // namespace

void scope_deleter(void* data) {
  if (!data) return;
  if (Session* session = Session::active()) session->freed(data);
  Pool* pool = Pool::owner_of(data);
  if (!pool) return GuestMemory::free(data);
  Block* block = pool->find(data);
  tell_profiler(*pool, *block, -block->size, c10::Device(c10::kCPU));
  pool->free(block);
}

at::Allocator& ordinary_cpu_allocator() { return *ordinary; }

void set_host_stream(Stream stream) { host_stream = stream; }

SessionDevice host_device(bool on_cuda) {
  return {.device = c10::Device(c10::kCPU),
          .allocator = c10::GetCPUAllocator(),
          .deleter = &scope_deleter,
          .stream = [](c10::Device) { return host_stream; },
          .generator = [](c10::Device) { return at::detail::getDefaultCPUGenerator(); },
          .work = on_cuda ? make_cuda_work(0) : nullptr};
}

void install_cpu_allocator() {
  constexpr std::uint8_t kPriority = 10;  // Above torch's; a lower one is ignored without a word.
  ordinary = c10::GetCPUAllocator();
  c10::SetCPUAllocator(new CpuAllocator, kPriority);
  pthread_atfork(&lock_for_fork, &unlock_after_fork, &unlock_after_fork);
}

}  // namespace dtr
