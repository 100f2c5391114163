// A session: the live executor of one scope. It owns the memory and the engine, and gives each
// operator of the program its memory and its recipe.
//
// The parts: Scope (when it begins and ends), StorageTable (which storage holds which value),
// Constants (what recipes read besides), Replayer (runs a recipe again), SessionTrace (what is
// recorded of the program). The session itself has the way of one operator (intercept.cpp,
// writes.cpp, results.cpp), of one request for memory, and of the calls that a user makes by hand
// (by_hand.cpp).

#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "dtr_alloc/pool/csrc/pool.h"
#include "runtime/csrc/engine/operator_call.h"
#include "runtime/csrc/live/machine/device.h"
#include "runtime/csrc/live/machine/thrash_watch.h"
#include "runtime/csrc/live/machine/usual_times.h"
#include "runtime/csrc/live/recipes/call.h"
#include "runtime/csrc/live/session/scope.h"
#include "runtime/csrc/live/session/session_trace.h"
#include "runtime/csrc/live/storages/constants.h"
#include "runtime/csrc/live/storages/replayer.h"
#include "runtime/csrc/live/storages/storage_table.h"
#include "runtime/csrc/live/storages/swap.h"
#include "runtime/csrc/live/trace/event_log.h"

namespace dtr {

struct SessionOptions {
  Bytes budget = 0;
  bool limited = true;
  bool on_cuda = false;  // Whether the memory is a CUDA device's.
  int cuda_device = 0;
  PageUses page_uses;  // Of a device.
  Heuristic heuristic;
  ScorerPlace scorer = ScorerPlace::kAuto;  // Of a device; on the host there is no choice.
  std::string image;                        // PTX of what scores on a device; empty: nothing does.
  Policy policy = Policy::kEager;
  std::vector<std::string> recordable;  // Operators that the user vouches for: libraries.h.
  bool record = true;                   // False: the memory serves and counts, nothing is recorded.
  bool logical_clock = false;  // An operator costs the bytes it touches instead of its time.
  bool timeline = false;
  bool debug = false;  // Look for writes that nobody declared.
  Bytes swap = 0;  // Of the host's memory for a device, else of a file in `swap_folder`; 0: none.
  std::string swap_folder;
  double thrash_limit = 0;      // thrash_watch.h
  struct Instruments {          // Of tests.
    bool evict_always = false;  // Evict everything after every operator.
    bool verify = false;        // Replay every recorded operator at once and compare.
    bool swap_always = false;   // Evict everything to the swap after every operator.
  } instruments;
};

struct SessionStats {
  std::int64_t operators, recorded, evictions, rematerializations, records;
  Nanos kernel_ns, remat_ns, search_ns, move_ns, bookkeeping_ns;
  Nanos base_cost, remat_cost;      // As EngineStats has them.
  std::int64_t foretold;            // Operators at which a tape was followed.
  std::int64_t classes;             // Of missing values, where a neighbourhood has them.
  std::int64_t verified;            // Recipes that verify mode replayed.
  std::int64_t time_stamps;         // Made on the device to learn what operators cost.
  std::int64_t device_choices;      // Victims chosen by scores that the device found,
  std::int64_t device_scores_from;  // and from how many candidates on it is asked; -1: never.
  Bytes live_bytes, peak_bytes, evictable_bytes;
  Bytes evicted_bytes;  // To make room: not by hand, by a resize, or by what tests ask for.
  Bytes largest_operator_bytes;
  Bytes largest_hold_bytes;  // Of values that a call of compiled code held together.
  SwapStats swap;
};

// What tensors were evicted and recomputed for, since the step of an optimizer before.
struct StepCosts {
  Bytes evicted = 0;  // To make room.
  Nanos added = 0ns;  // Recomputing and finding memory.
};

Memory::Handle pool_for(const SessionOptions& options);

class Session final : public Executor {
 public:
  Session(const SessionOptions& options, SessionDevice device, Memory::Handle memory);

  class Guard;  // The locks: locks.h.
  class Turn;
  class Resizing;  // resize.cpp
  class Reading;   // Code that reads through pointers: hold.h.
  class Hold;

  static Session* active() { return Scope::active(); }
  Scope& scope() { return scope_; }
  SessionTrace& trace() { return trace_; }
  const SessionTrace& trace() const { return trace_; }
  StorageTable& storages() { return storages_; }
  Engine& engine() { return engine_; }
  Memory& memory() { return *memory_; }
  const Memory& memory() const { return *memory_; }

  void execute(const OperatorInfo& info, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  // For work of a stream. Throws torch.OutOfMemoryError.
  void* allocate(std::size_t bytes, Stream stream);
  void freed(const void* data);  // By the deleter of ordinary tensors.
  bool serves(c10::DeviceType type) const { return device_.device.type() == type; }
  // A graph capture may neither evict nor recompute: what is there stays, nothing is recorded.
  void begin_capture();
  void end_capture() { --captures_; }
  static bool forget_refusal();       // This thread's; whether the budget refused.
  void retire_stream(Stream stream);  // It is about to be destroyed.
  void lock_for_fork();
  void unlock_after_fork();

  // By hand (by_hand.cpp). `tensor` may be any; those not tracked are resident constants.
  bool evict(const at::Tensor& tensor);  // Whether there was something to evict.
  void materialize(const at::Tensor& tensor);
  void pin(const at::Tensor& tensor);  // Resident, and never evicted again.
  // Its memory is about to be handed out, and nobody will tell us when it is written: it is an
  // ordinary tensor from now on, and recipes that read it keep what they read. Returns what that
  // took. An operator's arguments are in the operator's hands: nothing happens to them.
  Constants::Kept expose(const at::Tensor& tensor);
  Constants::Kept expose(c10::StorageImpl& storage);
  void let_write(Value& value, c10::StorageImpl& storage);  // Behind our back, from now on.
  void meet_this_stream();               // Who is handed memory may use it there.
  void close_swap();                     // The session is over.
  void note_exposure(std::string text);  // For the texts of errors: by which call, and where.
  std::vector<std::string> exposures() const;
  void note_stayed(std::string what_and_why);  // It is not recorded.
  std::vector<std::string> stayed() const;
  std::map<std::string, Bytes> caught() const;  // Operators that went on without memory.
  bool is_evicted(const at::Tensor& tensor) const;
  // A library takes the content of a tensor, a parameter, and brings it back: constants.h.
  void content_goes(const at::Tensor& tensor, Constants::Stays stays);
  void content_is_back(const at::Tensor& tensor);

  // A new limit, up to the largest that the memory can have (resize.cpp). Evicts what is above it.
  // Throws torch.OutOfMemoryError, and the budget is as before, where too much may not be evicted
  // now.
  void resize(Bytes budget);
  void lend(Bytes bytes);  // The same, relative to the budget there is. Below 0: takes back.
  void bound(Bytes most);  // Whatever the budget is: a second limit.
  Bytes give_back();       // Evicts all that may be, and returns the bytes of pages given back.

  void follow(const Heuristic& heuristic);  // From now on.
  Heuristic heuristic() const;

  void watch();                          // Records the first steps from now on (session_trace.h).
  bool watch_again(std::int64_t steps);  // False where that cannot be now.
  void start_trace();                    // Throws std::runtime_error where one is being recorded.
  // An optimizer step is over: a mark in a trace. Nothing where this thread is not the scope's.
  std::optional<StepCosts> step();
  static void set_in_optimizer(bool inside);
  void fail_allocation(std::int64_t k) { allocations_to_failure_ = k; }  // For tests: the k-th.

  // Says more about an error than is known where it is raised. `at_least`: bytes of a budget that
  // would have let this request through. Called without any of our locks.
  using Adviser = std::string (*)(Bytes at_least);
  static void set_adviser(Adviser adviser) { adviser_ = adviser; }
  [[noreturn]] void rethrow_with_advice(const c10::OutOfMemoryError& error);
  static void add_refusal(c10::Error& error);  // That may have led to it.
  void tell_of_caught();                       // Warns; called without any of our locks.
  std::vector<std::string> take_untold();      // Warnings that no operator came to give.

  SessionStats stats() const;
  void reset_peak() { memory_->reset_peak(); }
  std::vector<std::int64_t> timeline() const;
  void keep_events();
  std::vector<EventLog::Event> events() const;
  void check() const;

  // Executor.
  void recompute(Op& op, Lock& lock) override;
  void release(Value& value, Loss loss) override;
  void make_ordinary(Value& value) override;
  std::pair<Bytes, Bytes> free_neighbours(const Value& value) const override {
    const Pool* pool = pool_of_values();
    return pool ? pool->free_neighbours(block_of(value)) : std::pair<Bytes, Bytes>();
  }
  const Pool* pool_of_values() const override { return memory_->pool(); }
  bool kept_for_recipes(const Value& constant) const override {
    return Constants::kept_for_recipes(constant);
  }
  void forget(Value& value) override { constants_.forget(value); }
  Op* reload_for(const Value& value) override { return swap_->place_for(value.size); }
  void forget(Op& op) override { op.reload ? swap_->forget(op) : Recipe::of(op).destroy(); }

 private:
  bool execute_itemwise(const OperatorInfo& info, c10::DispatchKeySet keys,
                        torch::jit::Stack* stack);  // Whether it has: itemwise.cpp.
  // The stages of execute(), in intercept.cpp.
  void gather(Call& call, const torch::jit::Stack& stack) const;
  void add_argument(Call& call, TensorArgument& argument) const;
  bool recordable(Call& call, const torch::jit::Stack& stack) const;
  const char* distrusts(const OperatorInfo& info) const;
  void prepare(Call& call, OperatorCall& engaged, const torch::jit::Stack& stack, Lock& lock);
  void prepare_reads(Call& call, OperatorCall& engaged, Lock& lock);
  void cut_histories(Call& call, OperatorCall& engaged);
  void keep_what_rests_on_absent(Call& call, OperatorCall& engaged);
  void bring_arguments_back(Call& call, OperatorCall& engaged, Lock& lock);
  void make_constant(Call& call, OperatorCall& engaged, Value& value);
  void settle(Call& call, OperatorCall& engaged, Value& value);  // The same, or movable.
  void record(Call& call, OperatorCall& engaged, const torch::jit::Stack& stack);
  void snapshot(Call& call, const torch::jit::Stack& stack);
  void look_at_what_it_did(Call& call, const torch::jit::Stack& stack) const;
  bool library_keeps(const at::Tensor& result) const;
  void run(Call& call, torch::jit::Stack* stack);
  void run_timed(Call& call, torch::jit::Stack* stack);
  void link_reads(Call& call, Op& op);
  Value& source_of(const Call& call, std::size_t i);
  void verify_constants(const Call& call);
  void refuse_what_cannot_fit(Bytes budget);
  void insist_on(Bytes budget, Bytes stays) const;
  void shrink(Bytes budget);
  bool clear_pages(Bytes budget);
  void trim();
  static void tell_what_is_there(const Pool& pool, TraceRecorder& recorder);
  bool follow_stream();                     // Whether the memory has met several.
  bool may_be_new(const Call& call) const;  // This thread's stream.
  bool held_elsewhere(const Call& call, const Value& value) const;
  void read_on_stream(const Value& value);
  void read_on_stream(const Call& call);

  // Its last stage, in results.cpp.
  void after(Call& call, OperatorCall& engaged, const torch::jit::Stack& stack, Lock& lock);
  void after_failure(Call& call, OperatorCall& engaged);
  void adopt_results(Call& call, Op& op, const torch::jit::Stack& stack);
  void adopt_result(Call& call, Op& op, std::uint16_t output, const c10::TensorImpl& tensor);
  template <class Visit>
  void for_each_written(const Call& call, const Visit& visit);
  void adopt_written(Call& call, OperatorCall& engaged);
  void count(Call& call);
  std::int64_t usual_ticks(Bytes bytes) const;
  void look_at_results(Call& call, const torch::jit::Stack& stack);
  void arm_arguments(const Call& call);
  void arm_constants(c10::ArrayRef<c10::StorageImpl*> storages);  // Those that are constants.
  void arm_again(const Call& call);
  void tell_what_stays(const Call& call, const torch::jit::Stack& stack);  // library_calls.cpp

  // In instruments.cpp.
  void apply_instruments(Op* kept, Lock& lock);
  void verify(Op& op, Lock& lock);
  void verify_repeats(const Call& call, Op& op, Lock& lock);
  std::string difference(Op& op, Lock& lock);

  // In swapping.cpp.
  bool may_adopt(const Call& call) const;
  void adopt_movable(const Call& call, c10::StorageImpl* storage);
  void adopt_what_was_written(const Call& call);
  void adopt_what_was_made(const Call& call, const torch::jit::Stack& stack);
  void freeze_movable(Call& call, OperatorCall& engaged, Value& value, c10::StorageImpl* storage);
  void note_movable(Call& call, c10::StorageImpl* storage);
  void reload(Op& op, Lock& lock);
  void store(Value& value);
  void swap_beside(bool met);
  void reload_ahead();
  bool begin_ahead(Value& value);
  bool give_up_ahead() { return swap_ && swap_->give_up_ahead(); }  // Whether there was any.

  // What a write asks for, in writes.cpp.
  void prepare_writes(Call& call, OperatorCall& engaged, Lock& lock);
  void freeze_written(TensorArgument& argument, OperatorCall& engaged);
  void read_everywhere(Call& call, OperatorCall& engaged, Value& constant, std::size_t at);
  void copy_written_constants(Call& call, OperatorCall& engaged, Lock& lock);
  bool long_written(Value& value);

  Constants::Kept hand_out(c10::StorageImpl& storage, Lock& lock);
  void bring_back(Value& value, Lock& lock);
  at::DataPtr copy_of(const void* content, Bytes bytes);
  c10::intrusive_ptr<c10::StorageImpl> copy_of(const c10::StorageImpl& storage, Bytes bytes,
                                               Lock& lock);
  Block* take(Bytes asked, Fit fit, Stream stream, std::string& shortage);
  Block* find_room(Bytes asked, Stream stream, std::string& shortage, Guard& guard);
  Block* make_room(Bytes asked, Stream stream, std::string& shortage, Lock& lock);
  MovePrices move_prices(const Pool& pool) const;

  // In refusals.cpp.
  [[noreturn]] void out_of_memory(Bytes asked, const std::string& shortage);
  void note_caught(const OperatorInfo& info);

  void watch_for_thrash();

  const SessionOptions options_;
  const SessionDevice device_;
  const std::unique_ptr<Costs> costs_;                // Null on the host.
  UsualTimes usual_;                                  // On the host.
  std::unordered_set<std::uint64_t> compiled_;        // Code that has run (hold.h).
  const std::unique_ptr<MutationDetector> detector_;  // Null outside debug mode.
  const Memory::Handle memory_;
  Engine engine_;
  SessionTrace trace_;
  StorageTable storages_;
  Constants constants_;
  std::recursive_mutex turn_;
  UnderWay under_way_{turn_};
  Replayer replayer_;
  const std::unique_ptr<Swap> swap_;  // Null where there is none.
  EventLog events_;
  ThrashWatch thrash_;
  Scope scope_;
  std::shared_ptr<const RandomState> last_random_;  // For a library's operator, in its Turn.

  std::vector<std::int64_t> timeline_;
  std::int64_t operators_ = 0, recorded_ = 0, verified_ = 0;
  std::int64_t kernel_ticks_ = 0, remat_ticks_ = 0, search_ticks_ = 0, bookkeeping_ticks_ = 0;
  Nanos moving_{0};  // Of the search: pages.
  Bytes touched_bytes_ = 0, largest_hold_ = 0, evicted_for_room_ = 0;
  StepCosts costs_of_steps_;
  Bytes budget_, most_ = std::numeric_limits<Bytes>::max();  // The limit is the smaller of them.
  struct Resizes {
    std::recursive_mutex mutex;  // Whoever has it may set a limit that is then refused.
    std::atomic<int> under_way{0};
    std::atomic<std::int64_t> ended{0};
  } resizes_;
  static constexpr Stream kNoStream = ~Stream{0};
  std::vector<Stream> streams_;                   // That have run operators,
  std::atomic<Stream> latest_stream_{kNoStream};  // and the one that did last.
  std::atomic<int> captures_{0};
  TraceRecorder* locked_recorder_ = nullptr;  // For a fork.
  std::atomic<std::int64_t> steps_{0};        // Of optimizers.
  std::vector<std::string> exposures_;
  std::set<std::string> stayed_;
  std::map<std::string, Bytes> caught_;  // The most that each operator was refused.
  std::vector<std::string> untold_;
  std::atomic<bool> some_untold_{false};
  // The size of the largest call that debug mode has run twice.
  std::unordered_map<const OperatorInfo*, Bytes> repeated_;
  std::atomic<std::int64_t> allocations_to_failure_{0};  // 0: none is to fail.
  static inline std::atomic<Adviser> adviser_{nullptr};
};

}  // namespace dtr
