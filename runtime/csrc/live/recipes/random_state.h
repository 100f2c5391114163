// Keeps the state of a random generator before a call, for the call's recipe.
//
// A CPU generator's state is copied field by field, in about 0.2 us. (clone() would first seed a
// new generator, which takes 1 us, and get_state() would make a tensor, which may run out of
// memory.) The generator of another device has only a seed and an offset, so we clone it.

#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include <mutex>
#include <optional>
#include <utility>

namespace dtr {

class RandomState {
 public:
  // The constructor, put() and is_of() are called with the generator's mutex held.
  explicit RandomState(const at::Generator& generator) {
    if (generator.device().is_cpu()) {
      cpu_.emplace(*generator.get<at::CPUGeneratorImpl>());
    } else {
      other_ = generator.clone();
    }
  }

  // Sets the generator to this state. Replaces a CUDA generator's state as a whole: setting its
  // seed would make cuDNN's dropout start anew.
  void put(const at::Generator& generator) const {
    if (!cpu_) {
      generator.unsafeGetGeneratorImpl()->graphsafe_set_state(other_.clone().getIntrusivePtr());
      return;
    }
    auto& target = *generator.get<at::CPUGeneratorImpl>();
    target.set_engine(cpu_->engine);
    target.set_next_float_normal_sample(cpu_->next_float);
    target.set_next_double_normal_sample(cpu_->next_double);
  }

  bool is_of(const at::Generator& generator) const {  // Whether `generator` is in this state.
    if (!cpu_) {
      return other_.current_seed() == generator.current_seed() &&
             other_.get_offset() == generator.get_offset();
    }
    auto& now = *generator.get<at::CPUGeneratorImpl>();
    const at::mt19937_data_pod here = cpu_->engine.data(), there = now.engine().data();
    return here.seed_ == there.seed_ && here.left_ == there.left_ && here.next_ == there.next_ &&
           here.seeded_ == there.seeded_ && here.state_ == there.state_ &&
           cpu_->next_float == now.next_float_normal_sample() &&
           cpu_->next_double == now.next_double_normal_sample();
  }

  at::Generator generator() const {  // Makes a new generator in this state.
    if (!cpu_) return other_.clone();
    at::Generator made = at::make_generator<at::CPUGeneratorImpl>();
    put(made);
    return made;
  }

 private:
  // A CPU generator's state: 2.5 kilobytes, constructed in place.
  struct Cpu {
    explicit Cpu(at::CPUGeneratorImpl& source)
        : engine(source.engine()),
          next_float(source.next_float_normal_sample()),
          next_double(source.next_double_normal_sample()) {}
    at::mt19937 engine;
    std::optional<float> next_float;
    std::optional<double> next_double;
  };
  std::optional<Cpu> cpu_;
  at::Generator other_;
};

// Sets a generator to a recorded state; the destructor restores the generator's own state.
class DrawingFrom {
 public:
  // Does nothing if `state` is null.
  DrawingFrom(at::Generator generator, const RandomState* state)
      : generator_(std::move(generator)) {
    if (!state) return;
    std::lock_guard guard(generator_.mutex());
    if (generator_.device().is_cpu()) {
      cpu_.emplace(generator_);
    } else {
      other_ = generator_.unsafeGetGeneratorImpl()->graphsafe_get_state();
    }
    state->put(generator_);
  }
  ~DrawingFrom() {
    if (!cpu_ && !other_) return;
    std::lock_guard guard(generator_.mutex());
    cpu_ ? cpu_->put(generator_) : generator_.unsafeGetGeneratorImpl()->graphsafe_set_state(other_);
  }
  DrawingFrom(const DrawingFrom&) = delete;

 private:
  at::Generator generator_;
  std::optional<RandomState> cpu_;
  c10::intrusive_ptr<c10::GeneratorImpl> other_;
};

}  // namespace dtr
