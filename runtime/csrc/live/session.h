// One scope of rematerialization: it owns the pool and the engine, and holds the bytes for the
// engine.
//
// A tracked storage carries its Value in its DataPtr (context = Value, deleter = storage_died),
// resident or evicted, so storage and value find each other without a table, and the death of the
// storage is the deleter's call. An evicted storage has a null pointer and refuses raw access with
// a text that says what to do. A storage we do not track is a constant; while recipes read it, it
// is in a table that keeps it alive.
//
// A storage may die in any thread, Python's collector's included, while another thread evicts it.
// So a tracked storage is held weakly. Torch then calls the deleter while the object is still
// whole, and the deleter waits for the engine's lock. Until it has the lock, the pointer that it
// was called through belongs to it: home_of() is the only way to a value's storage (DESIGN.md, rule
// 9).

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/flat_hash_map.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dtr_alloc/csrc/pool.h"
#include "runtime/csrc/engine/engine.h"
#include "runtime/csrc/live/device.h"
#include "runtime/csrc/live/mutation_detector.h"
#include "runtime/csrc/live/operator_costs.h"
#include "runtime/csrc/live/recipe.h"
#include "runtime/csrc/live/trace_recorder.h"

namespace dtr {

struct SessionOptions {
  Bytes budget = 0;  // Of the pool.
  bool limited = true;
  bool on_cuda = false;  // Whether the pool's memory is a CUDA device's.
  int cuda_device = 0;
  Heuristic heuristic;
  ScorerPlace scorer = ScorerPlace::kAuto;  // Of a device; on the host there is no choice.
  std::string image;                        // PTX of what scores on a device; empty: nothing does.
  Policy policy = Policy::kEager;
  bool record = true;          // False: the pool serves and counts, nothing is recorded.
  bool logical_clock = false;  // An operator costs the bytes it touches instead of its time.
  bool timeline = false;
  bool evict_always = false;  // Test instrument: evict everything after every operator.
  bool verify = false;  // Test instrument: replay every recorded operator at once and compare.
  bool debug = false;   // Look for writes that nobody declared.
  double thrash_limit =
      0;  // Rematerialization time over useful time, in a window, that is an error; 0 for none.
};

struct SessionStats {
  std::int64_t operators, recorded, evictions, rematerializations, records;
  Nanos kernel_ns, remat_ns, search_ns, bookkeeping_ns;
  std::int64_t verified;            // Recipes that verify mode replayed.
  std::int64_t time_stamps;         // Made on the device to learn what operators cost.
  std::int64_t device_choices;      // Victims chosen by scores that the device found,
  std::int64_t device_scores_from;  // and from how many candidates on it is asked; -1: never.
  Bytes live_bytes, peak_bytes, evictable_bytes, largest_operator_bytes;
};

class Session final : public Executor {
 public:
  Session(const SessionOptions& options, SessionDevice device);
  ~Session() override;

  // The scope that allocations and operators of this process belong to, or null.
  static Session* active() { return active_.load(std::memory_order_acquire); }
  void claim();  // Becomes the active one. Throws std::runtime_error where another scope is.
  void enter();  // The same, and the operators of this thread are the scope's.
  void join();   // The operators of this thread too. Not while a trace is recorded.
  void part();
  Bytes leave();  // Commits; returns the bytes that did not fit and went to ordinary memory.

  void execute(const OperatorInfo& info, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  // For work of a stream. Throws torch.OutOfMemoryError.
  void* allocate(std::size_t bytes, Stream stream);
  bool serves(c10::DeviceType type) const { return device_.device.type() == type; }
  // A graph capture may neither evict nor recompute: what is there stays, nothing is recorded.
  void begin_capture();
  void end_capture();

  // By hand. `tensor` may be any; those that are not tracked are resident constants.
  bool evict(const at::Tensor& tensor);  // Whether there was something to evict.
  void materialize(const at::Tensor& tensor);
  void pin(const at::Tensor& tensor);  // Resident, and never evicted again.
  // Its memory is about to be handed out, and nobody will tell us when it is written: it is an
  // ordinary tensor from now on, and recipes that read it keep what they read. Returns what that
  // took: bytes of the tensor that were copied, bytes of others that can't be evicted any more. An
  // operator's arguments are in the operator's hands: nothing happens to them.
  struct Exposure {
    Bytes copied = 0, kept = 0;
  };
  Exposure expose(const at::Tensor& tensor);
  void note_exposure(std::string text);  // For the texts of errors: by which call, and where.
  std::vector<std::string> exposures() const;
  bool is_evicted(const at::Tensor& tensor) const;

  // While one lives, the tensor's content is there, and this thread may copy it through a pointer.
  class Reading;
  // While one lives, the same of many tensors, for code that runs by itself (hold.h).
  class Hold;

  void commit();
  void commit_before_fork();
  void step();  // An optimizer step is over: a mark in a trace.
  static void set_in_optimizer(bool inside);
  static void record_this_thread(bool on);  // Whether its operators are the active scope's.
  static bool records_this_thread();
  void fail_allocation(std::int64_t k);  // Test instrument: the k-th from now fails, once.
  void abandon_in_child();               // After fork: the parent's scope is not the child's.

  void start_trace();  // Throws std::runtime_error where one is being recorded.
  TraceRecorder::Records take_trace();
  void freed(const void* data);  // By the deleter of ordinary pool tensors.

  // Records the scope's first steps, for who asks later which budget would do. It ends by itself.
  enum class Watch { kOff, kOn, kOver, kThreads, kLong, kTraced };
  // Of optimizers: a generator may have one for several of its critic's.
  static constexpr std::int64_t kWatchedSteps = 12;
  void watch();
  struct Seen {
    TraceRecorder::Records records;
    std::int64_t steps;  // Of optimizers.
    Watch watch;         // What ended it.
  };
  Seen seen() const;
  // Says more about an error than is known where it is raised. `at_least`: bytes of a budget that
  // would have let this request through. Called without any of our locks.
  using Adviser = std::string (*)(Bytes at_least);
  static void set_adviser(Adviser adviser) { adviser_ = adviser; }
  [[noreturn]] void rethrow_with_advice(const c10::OutOfMemoryError& error);

  SessionStats stats() const;
  void reset_peak() { pool_->reset_peak(); }
  std::vector<std::int64_t> timeline() const;

  // What a person wants to see beside a profile. Times are the system clock's, as a profiler's are.
  struct Event {
    bool evicted;  // Else recomputed.
    Nanos at, duration;
    const OperatorInfo* made_by;
    Bytes size, live;  // Of what went or came back; of the pool, afterwards.
  };
  void keep_events();
  std::vector<Event> events() const;
  const Pool& pool() const { return *pool_; }
  Pool& pool() { return *pool_; }
  void check() const;

  // Executor.
  void run(Op& op, Lock& lock) override;
  void release(Value& value, Loss loss) override;
  void settle(Value& value) override;
  std::pair<Bytes, Bytes> free_neighbours(const Value& value) const override;
  bool kept_for_recipes(const Value& constant) const override;
  const Pool* pool_of_values() const override { return pool_.get(); }
  void forget(Value& value) override;
  void forget(Op& op) override;

  static void storage_died(void* value);      // Deleter of tracked storages.
  static void raw_access(c10::StorageImpl*);  // A mutable pointer is about to leave torch.
  static void lock_for_fork();
  static void unlock_after_fork();

 private:
  class Guard;  // Holds the engine's lock; afterwards drops what must not die under it.
  class Turn;   // Of the threads of a scope, to change what others may read; see turn_.
  struct Call;

  static bool tracked(const c10::StorageImpl* storage);  // It then has a weak reference of ours.
  static Value* value_of(const c10::StorageImpl* storage);
  Value& constant_for(c10::StorageImpl* storage);
  const void* key_of(const c10::StorageImpl* storage) const;  // Of the recorder.
  void end_watch(Watch why);
  bool would_track(const Call& call, const c10::TensorImpl& tensor) const;
  bool would_record(const Call& call, TraceRecorder& recorder) const;
  void record_begin(const Call& call, TraceRecorder& recorder);
  void record_end(const Call& call, TraceRecorder& recorder, Nanos cost,
                  const torch::jit::Stack& stack);
  void attach(c10::StorageImpl* storage, Value& value, Block* block);
  void detach(c10::StorageImpl* storage, Block* block);
  void arm(c10::StorageImpl* storage);
  void let_write(Value& value, c10::StorageImpl& storage);
  Exposure hand_out(c10::StorageImpl& storage, Lock& lock);
  c10::StorageImpl* home_of(Value& value);
  void forget_home(Value& value);
  Block* block_of(const c10::StorageImpl* storage) const;
  void free(Block* block);

  at::DataPtr ordinary(void* data) const { return {data, data, device_.deleter, device_.device}; }
  Stream stream() const { return device_.work ? device_.stream(device_.device) : 0; }
  void copy(void* to, const void* from, Bytes bytes);
  bool ours(const c10::TensorImpl& tensor) const;
  bool follow_stream();
  void read_on_stream(const Value& value);

  // The stages of execute(), in intercept.cpp.
  void gather(Call& call, const torch::jit::Stack& stack) const;
  Op* before(Call& call, const torch::jit::Stack& stack);
  void make_constant(Call& call, Value& value);
  void prepare_writes(Call& call, Lock& lock);
  bool long_written(Value& value);
  void record_written(Call& call, Lock& lock);
  bool of_library(const c10::StorageImpl* storage) const;
  static bool overlap(c10::StorageImpl* one, c10::StorageImpl* other);
  c10::SmallVector<Value*, 4> constants_over(c10::StorageImpl* storage) const;
  Exposure keep_content(c10::StorageImpl* storage, Lock& lock);
  Exposure keep_content(Value& constant, Lock& lock);
  void privatize(Value& constant, Lock& lock);
  static bool share_memory(const TensorArguments& arguments);
  void first_use(Value& value);
  void after(Call& call, Op* op, const torch::jit::Stack& stack);
  void after_failure(Call& call, Op* op);
  void adopt_outputs(Call& call, Op& op, const torch::jit::Stack& stack);
  void verify(Op& op, Lock& lock);

  void bring_back(Value& value, Lock& lock);
  c10::SmallVector<at::Tensor, 4> replay(Op& op, Lock& lock);
  MovePrices move_prices() const;
  void shed_sometimes();
  void bury(Lock& lock);
  [[noreturn]] void out_of_memory(Bytes asked, const std::string& shortage);
  bool spill();
  void watch_for_thrash();

  static std::atomic<Session*> active_;

  const SessionOptions options_;
  const SessionDevice device_;
  const std::unique_ptr<Costs> costs_;  // Null on the host.
  Pool::Handle pool_;
  Engine engine_;
  // One thread at a time recomputes, so that each value is recomputed once; writes in place,
  // because a recomputation may be reading what is there before; draws random numbers, because the
  // recipe must have the state that they were drawn from; or commits. Always taken before the
  // engine's lock. All other operators run side by side.
  std::recursive_mutex turn_;
  ska::flat_hash_map<c10::StorageImpl*, Value*> constants_;
  const std::unique_ptr<MutationDetector> detector_;         // Null outside debug mode.
  ska::flat_hash_set<c10::StorageImpl*> library_constants_;  // Those whose memory is a library's.
  c10::SmallVector<c10::intrusive_ptr<c10::StorageImpl>, 8>
      graveyard_;                                              // Released without the lock.
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> settled_;  // By the commit that ends the scope.
  std::vector<std::int64_t> timeline_;
  bool keeps_events_ = false;
  std::vector<Event> events_;
  std::atomic<TraceRecorder*> recorder_{nullptr};          // Null while nothing is recorded.
  std::vector<std::unique_ptr<TraceRecorder>> recorders_;  // Other threads may still use old ones.
  TraceRecorder::Name last_name_ = 0;                      // Of the recordings before.
  std::atomic<Watch> watch_{Watch::kOff};
  TraceRecorder* watched_ = nullptr;
  std::int64_t watched_steps_ = 0;
  std::atomic<Bytes> refused_{0};  // By the last error: the budget that would have served it.
  bool forked_ = false;
  static inline std::atomic<Adviser> adviser_{nullptr};
  std::int64_t operators_ = 0, kernel_ticks_ = 0, bookkeeping_ticks_ = 0;
  std::int64_t recorded_ = 0, remat_ticks_ = 0, search_ticks_ = 0, verified_ = 0;
  std::atomic<std::int64_t> allocations_to_failure_{0};  // 0: none is to fail.
  std::int64_t window_remat_ = 0, window_kernel_ = 0, window_start_ = 0;
  static constexpr std::size_t kFirstShedding = 16;
  std::size_t shed_at_ = kFirstShedding;  // Constants.
  int joined_ = 0;
  std::vector<Stream> streams_;  // That have run operators on tracked tensors.
  std::atomic<int> captures_{0};
  Bytes copies_ = 0;  // Of constants that were written or handed out, while recipes read them.
  std::vector<std::string> exposures_;
  bool lingering_ = false;  // Left, but some tensors could not be made ordinary.
  bool leaving_ = false, making_room_ = false;
  Bytes spilled_ = 0;
};

}  // namespace dtr
