// The state of a random generator before a call, for the recipe of the call.
//
// Of a CPU generator it is copied field by field, in about 0.2 us. Its clone() would seed a new
// generator first, which takes 1 us, and get_state() makes a tensor, which may fail for want of
// memory. Another device's generator is a seed and an offset, and is cloned.

#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include <optional>

namespace dtr {

class RandomState {
 public:
  // The generator's mutex must be held, here and in the next two.
  explicit RandomState(const at::Generator& generator);

  void put(const at::Generator& generator) const;    // The generator goes on from this state.
  bool is_of(const at::Generator& generator) const;  // It has not moved since.
  at::Generator generator() const;                   // One that does.

 private:
  struct Cpu {
    explicit Cpu(at::CPUGeneratorImpl& source);
    at::mt19937 engine;
    std::optional<float> next_float;
    std::optional<double> next_double;
  };
  std::optional<Cpu> cpu_;
  at::Generator other_;
};

// While it lives, a generator draws from a recorded state. Afterwards it goes on from its own.
class DrawingFrom {
 public:
  // `state` may be null: nothing happens.
  DrawingFrom(at::Generator generator, const RandomState* state);
  ~DrawingFrom();
  DrawingFrom(const DrawingFrom&) = delete;

 private:
  at::Generator generator_;
  std::optional<RandomState> cpu_;
  c10::intrusive_ptr<c10::GeneratorImpl> other_;
};

}  // namespace dtr
