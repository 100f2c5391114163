// Lists the kinds of events in a trace. From these lists of names the recorder, the simulator and
// Python (runtime/trace) make their constants, so that all use the same numbers.

#pragma once

// The kinds of entry that a trace's recorder writes (live/trace/trace_recorder.h).
#define DTR_RECORD_KINDS(X) X(Operator) X(Constant) X(Release) X(Freeze) X(Step) X(Optimizing)

// What happens to memory inside an operator. Each event has a number: of Allocated the bytes, of
// Freed the index of the operator's allocation, of Released the name of the tensor that the program
// drops, of Copied the bytes of a written argument, which each replay copies before it runs.
#define DTR_MEMORY_EVENTS(X) X(Allocated) X(Freed) X(Released) X(Copied)

// The steps of a schedule, which a simulation runs. Compute runs an operator. Get adds a reference
// of the program to a tensor, Release takes one away. Pin brings a tensor into memory for good.
// Live simulations also use Freeze (the tensor cannot be recomputed any more) and Step (an
// optimizer's step ends).
#define DTR_STEP_KINDS(X) X(Compute) X(Get) X(Pin) X(Release) X(Freeze) X(Step)

#define DTR_ENUMERATOR(name) k##name,
