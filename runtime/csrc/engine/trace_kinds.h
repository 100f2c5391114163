// Lists the kinds of events in a trace. From these lists of names the recorder, the simulator and
// Python (runtime/trace) make their constants, so that all use the same numbers.

#pragma once

// The kinds of the recorder's records (live/trace/trace_recorder.h).
#define DTR_RECORD_KINDS(X) X(Operator) X(Constant) X(Release) X(Freeze) X(Step) X(Optimizing)

// What happens to memory inside an operator, and the number that goes with it: allocated bytes; the
// index of an allocation that is freed; the name of a tensor that the program drops; the bytes of a
// written argument that each replay copies first.
#define DTR_MEMORY_EVENTS(X) X(Allocated) X(Freed) X(Released) X(Copied)

// The steps of a schedule: an operator runs; the program takes a reference; a tensor is brought
// into memory for good; a reference is released. The last two serve the live runtime's rules: a
// tensor cannot be recomputed any more; an optimizer's step ends.
#define DTR_STEP_KINDS(X) X(Compute) X(Get) X(Pin) X(Release) X(Freeze) X(Step)

#define DTR_ENUMERATOR(name) k##name,
