// Lists the statistics of a session, each once: X(type, name, value). The value is an expression
// over the local names of Session::stats(). Python reads a statistic by its name
// (bindings/bind_session.cpp). Those that users see are fields of SessionStats in
// runtime/scope/session.py.

#pragma once

#include <cstdint>

#include "dtr_alloc/pool/csrc/units.h"

#define DTR_SESSION_STATS(X)                                                                     \
  X(std::int64_t, operators, tally_.operators)                                                   \
  X(std::int64_t, recorded, tally_.recorded)                                                     \
  X(std::int64_t, evictions, engine.evictions)                                                   \
  X(std::int64_t, rematerializations, engine.rematerializations - swap.reloads)                  \
  X(std::int64_t, records, engine.values + engine.ops)                                           \
  X(Nanos, kernel_ns, to_nanoseconds(tally_.kernel_ticks))                                       \
  X(Nanos, remat_ns, to_nanoseconds(tally_.remat_ticks))                                         \
  X(Nanos, search_ns, searching - moving)                                                        \
  X(Nanos, move_ns, moving)                                                                      \
  X(Nanos, bookkeeping_ns, to_nanoseconds(tally_.bookkeeping_ticks))                             \
  X(Nanos, base_cost, engine.base_cost)      /* Sum of the program's operator costs. */          \
  X(std::int64_t, foretold, engine.foretold) /* Operators run while a tape was followed. */      \
  X(std::int64_t, classes, engine.classes)   /* Classes of missing values, if scores use any. */ \
  X(std::int64_t, verified, tally_.verified) /* Recipes that verify mode replayed. */            \
  X(std::int64_t, time_stamps, tally_.costs ? tally_.costs->stamps() : 0)                        \
  /* device_choices: victims that the device's scores chose. device_scores_from: the least */    \
  /* number of candidates with which the device scores; -1 if it never does. */                  \
  X(std::int64_t, device_choices, device ? device->choices() : 0)                                \
  X(std::int64_t, device_scores_from, device ? device->scores_from() : -1)                       \
  X(Bytes, live_bytes, pool.live)                                                                \
  X(Bytes, peak_bytes, pool.peak)                                                                \
  X(Bytes, evictable_bytes, engine.evictable)                                                    \
  /* Evicted for requests of memory; not by hand, by a resize or in tests. */                    \
  X(Bytes, evicted_bytes, tally_.evicted_for_room)                                               \
  X(Bytes, largest_operator_bytes, engine.largest_operator)                                      \
  /* The most bytes that one call of compiled code held in memory (hold.h). */                   \
  X(Bytes, largest_hold_bytes, tally_.largest_hold)                                              \
  X(Bytes, swapped_out_bytes, swap.out)                                                          \
  X(Bytes, swapped_in_bytes, swap.in)                                                            \
  X(Bytes, swapped_ahead_bytes, swap.ahead)                                                      \
  X(Nanos, swap_ns, swap.times.busy)                                                             \
  X(Nanos, swap_waited_ns, swap.times.waited)

namespace dtr {

struct SessionStats {
#define DTR_FIELD(type, name, value) type name;
  DTR_SESSION_STATS(DTR_FIELD)
#undef DTR_FIELD
};

}  // namespace dtr
