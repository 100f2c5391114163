// Lists the kinds of events in a trace. From these lists of names the recorder, the simulator and
// Python (runtime/trace) make their constants, so that all use the same numbers.

#pragma once

// The kinds of the recorder's records (live/trace/trace_recorder.h).
#define DTR_RECORD_KINDS(X) X(Operator) X(Constant) X(Release) X(Freeze) X(Step) X(Optimizing)

// The memory events inside an operator, each with a number: the bytes allocated; the index of an
// allocation that is freed; the name of a tensor that the program drops; the bytes of a written
// argument that each replay copies first.
#define DTR_MEMORY_EVENTS(X) X(Allocated) X(Freed) X(Released) X(Copied)

// A schedule has these steps. Compute runs an operator; Get takes a reference for the program; Pin
// brings a tensor into memory for good; Release ends a reference. Freeze and Step serve the live
// runtime's rules: a tensor cannot be recomputed any more; an optimizer's step ends.
#define DTR_STEP_KINDS(X) X(Compute) X(Get) X(Pin) X(Release) X(Freeze) X(Step)

#define DTR_ENUMERATOR(name) k##name,
