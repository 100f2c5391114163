// The numbers by which the recorder, the simulator and Python (runtime/trace) speak of what happens
// in a trace. Each is a list of names, of which both sides make their constants.

#pragma once

// Of the recorder's records (live/trace/trace_recorder.h).
#define DTR_RECORD_KINDS(X) X(Operator) X(Constant) X(Release) X(Freeze) X(Step) X(Optimizing)

// Of what happens to memory inside an operator: so many bytes are allocated; its block of that
// number is freed; the program lets a tensor go; so many bytes that the operator writes are copied
// before it runs again.
#define DTR_MEMORY_EVENTS(X) X(Allocated) X(Freed) X(Released) X(Copied)

// Of a schedule's steps: an operator runs; the program takes a reference; a tensor is brought into
// memory for good; a reference is given back. The last two are for the live runtime's rules: a
// tensor cannot be recomputed any more; an optimizer's step ends.
#define DTR_STEP_KINDS(X) X(Compute) X(Get) X(Pin) X(Release) X(Freeze) X(Step)

#define DTR_ENUMERATOR(name) k##name,
