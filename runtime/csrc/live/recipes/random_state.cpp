#include "runtime/csrc/live/recipes/random_state.h"

#include <mutex>

namespace dtr {

RandomState::RandomState(const at::Generator& generator) {
  if (!generator.device().is_cpu()) {
    other_ = generator.clone();
    return;
  }
  cpu_.emplace(*generator.get<at::CPUGeneratorImpl>());
}

// Two and a half kilobytes, built where they stay.
RandomState::Cpu::Cpu(at::CPUGeneratorImpl& source)
    : engine(source.engine()),
      next_float(source.next_float_normal_sample()),
      next_double(source.next_double_normal_sample()) {}

// A CUDA generator's state is swapped whole: to set its seed would make cuDNN's dropout start anew.
void RandomState::put(const at::Generator& generator) const {
  if (!cpu_) {
    generator.unsafeGetGeneratorImpl()->graphsafe_set_state(other_.clone().getIntrusivePtr());
    return;
  }
  auto& target = *generator.get<at::CPUGeneratorImpl>();
  target.set_engine(cpu_->engine);
  target.set_next_float_normal_sample(cpu_->next_float);
  target.set_next_double_normal_sample(cpu_->next_double);
}

bool RandomState::is_of(const at::Generator& generator) const {
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

at::Generator RandomState::generator() const {
  if (!cpu_) return other_.clone();
  at::Generator made = at::make_generator<at::CPUGeneratorImpl>();
  put(made);
  return made;
}

DrawingFrom::DrawingFrom(at::Generator generator, const RandomState* state)
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

DrawingFrom::~DrawingFrom() {
  if (!cpu_ && !other_) return;
  std::lock_guard guard(generator_.mutex());
  cpu_ ? cpu_->put(generator_) : generator_.unsafeGetGeneratorImpl()->graphsafe_set_state(other_);
}

}  // namespace dtr
