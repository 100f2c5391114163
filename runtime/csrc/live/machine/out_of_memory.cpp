#include "runtime/csrc/live/machine/out_of_memory.h"

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <utility>

#include "runtime/csrc/live/machine/in_operator.h"

namespace dtr {
namespace {

constexpr Bytes kKib = 1 << 10, kMib = 1 << 20;

// Of a unit, whole ones beside the rest: a hundred times the largest size is no number.
std::string in_hundredths(Bytes bytes, Bytes rounding) {
  const Bytes unit = bytes < kMib ? kKib : kMib;
  const Bytes count = bytes / unit * 100 + (bytes % unit * 100 + rounding * (unit - 1)) / unit;
  char text[32];
  std::snprintf(text, sizeof text, "%" PRId64 ".%02" PRId64 " %s", count / 100, count % 100,
                unit == kKib ? "KiB" : "MiB");
  return text;
}

// Rounded up: what is asked, and a budget that shall do.
std::string enough_mib(Bytes bytes) {
  return bytes < kKib ? in_mib(bytes) : in_hundredths(bytes, 1);
}

// A smaller budget may have come while more was live.
Bytes free_of(const PoolStats& pool) { return std::max<Bytes>(pool.budget - pool.live, 0); }

std::string handed_out(const std::vector<std::string>& exposures) {
  std::string list;
  for (const std::string& text : exposures) list += (list.empty() ? "" : ", ") + text;
  return list.empty() ? "" : "\n  memory was handed out by: " + list;
}

std::string full_swap(Bytes size) {
  return size > 0 ? "\n  swap: full, with " + in_mib(size) +
                        "; a larger one takes more of what cannot be recomputed"
                  : "";
}

// What is free may do for what was asked, and not for the block.
std::string asked_of(const Refusal& refusal) {
  const Bytes free = free_of(refusal.pool);
  const bool rounded = refusal.asked <= free && free < refusal.charge;
  return enough_mib(refusal.asked) +
         (rounded ? ", in a block of " + enough_mib(refusal.charge) : "");
}

std::string where_any(const char* name, Bytes bytes) {
  return bytes > 0 ? name + in_mib(bytes) : "";
}

std::atomic<Adviser> the_adviser{nullptr};

}  // namespace

std::string in_mib(Bytes bytes) {
  return bytes < kKib ? std::to_string(bytes) + " B" : in_hundredths(bytes, 0);
}

Bytes Refusal::least_budget() const { return std::max(pool.live + charge, pool.budget + kGranule); }

// Accelerate and transformers, which look for a batch size that fits, know such an error by
// " out of memory.".
#define DTR_OUT_OF_MEMORY(...) \
  TORCH_CHECK_WITH(OutOfMemoryError, false, "dtr_alloc is out of memory. ", __VA_ARGS__)

void throw_machine_is_full(const Refusal& refusal, const std::string& machine) {
  DTR_OUT_OF_MEMORY(
      "Free memory of other programs, or of this one outside of the scope; another budget does not "
      "help\n  asked: ",
      enough_mib(refusal.asked), ", within the budget of ", in_mib(refusal.pool.budget),
      "\n  the machine has no more, and nothing is left to evict: ", machine);
}

void throw_too_large(Bytes asked, Bytes most, Bytes budget) {
  DTR_OUT_OF_MEMORY(
      "Ask for less, as with a smaller batch; no budget helps\n  asked: ", enough_mib(asked),
      "\n  at most possible here: ", in_mib(most), "\n  budget: ", in_mib(budget));
}

void throw_nothing_is_evicted_here(const Refusal& refusal) {
  DTR_OUT_OF_MEMORY("Raise the budget to at least ", enough_mib(refusal.least_budget()),
                    ", or take torch 2.13 or later: this torch hides what tensor subclasses and "
                    "dispatch modes call, so nothing is evicted inside them\n  asked: ",
                    asked_of(refusal), "\n  budget: ", in_mib(refusal.pool.budget), ", of which ",
                    in_mib(free_of(refusal.pool)), " are free");
}

void throw_budget_is_full(const Refusal& refusal) {
  const PoolStats& pool = refusal.pool;
  DTR_OUT_OF_MEMORY(
      "Raise the budget to at least ", enough_mib(refusal.least_budget()),
      "\n  asked: ", asked_of(refusal), "\n  budget: ", in_mib(pool.budget), ", of which ",
      in_mib(free_of(pool)),
      pool.live + refusal.charge <= pool.budget ? " are free in smaller pieces" : " are free",
      "\n  read by operators now running or being recomputed: ", in_mib(refusal.locked),
      where_any("\n  made so far by the one that asks: ", refusal.made),
      "\n  cannot be recomputed (gradients, optimizer state, inputs, exposed or pinned tensors): ",
      in_mib(pool.live - refusal.locked - refusal.made), handed_out(refusal.exposures),
      where_any("\n  largest operator so far: ", refusal.largest_operator),
      full_swap(refusal.full_swap));
}

void throw_cannot_shrink(Bytes asked, Bytes stays, Bytes budget) {
  TORCH_CHECK_WITH(OutOfMemoryError, false, "the budget cannot shrink to ", in_mib(asked), ": ",
                   in_mib(stays),
                   " are in use by operators now running or cannot be recomputed; it stays ",
                   in_mib(budget), ": resize it to at least ", enough_mib(stays),
                   ", or try again when less is in use, such as between two steps");
}

void throw_thrashing(Bytes budget, double ratio, double limit) {
  DTR_OUT_OF_MEMORY("Raise the budget to at least ", enough_mib(budget + budget / 4),
                    ", or set thrash_limit=0 to go on regardless\n  budget: ", in_mib(budget),
                    "\n  recomputing took ", static_cast<std::int64_t>(ratio),
                    " times as long as computing; the limit is ", limit);
}

void throw_went_on(const std::string& name, Bytes asked, Bytes at_least) {
  const std::string what =
      at_least == 0 ? "Leave strict=True out, or free memory of other programs: no budget is known "
                      "that would do"
                    : "Raise the budget to at least " + enough_mib(at_least);
  DTR_OUT_OF_MEMORY(what, "\n  strict=True: ", name, " asked for ", enough_mib(asked),
                    ", was refused it, and went on with less memory: last bits of its results may "
                    "differ. A library such as cuDNN keeps to it in this process: start again");
}

std::string went_on_without(const std::string& name, Bytes asked, Bytes at_least) {
  const std::string text = c10::str(
      name, " asked for ", enough_mib(asked), ", was refused it, and went on with less memory. ",
      "A library such as cuDNN takes another algorithm then, and keeps to it in this process: "
      "results may differ in their last bits from those of a run with more memory");
  if (at_least == 0) return text;
  return text + ". For the same results start again with a budget of at least " +
         enough_mib(at_least);
}

void set_adviser(Adviser adviser) { the_adviser = adviser; }

void rethrow_with_advice(const c10::OutOfMemoryError& error, const std::string& name) {
  const Bytes at_least = InOperator::state.at_least;
  forget_refusal();
  const Adviser adviser = the_adviser;
  if (at_least == 0 || !adviser) throw;
  std::string text = error.msg();
  const std::string of = name.empty() ? "" : "\n  operator: " + name;
  text.insert(std::min(text.find('\n'), text.size()), adviser(at_least) + of);
  TORCH_CHECK_WITH(OutOfMemoryError, false, text);
}

void add_refusal(c10::Error& error) {
  const Bytes asked = InOperator::state.refused, at_least = InOperator::state.at_least;
  forget_refusal();
  if (asked == 0) return;
  std::string text =
      "dtr_alloc had refused the operator " + enough_mib(asked) + ", which may be the cause";
  if (at_least) text += ": raise the budget to at least " + enough_mib(at_least);
  error.add_context(std::move(text));
}

bool forget_refusal() {
  InOperator::state.refused = 0;
  return std::exchange(InOperator::state.at_least, 0) != 0;
}

}  // namespace dtr
