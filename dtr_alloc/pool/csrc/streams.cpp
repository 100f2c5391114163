// Keeps the table of fences and the numbers of events. Each member is a few loops over the streams
// of a block, nearly always one or two.

#include "dtr_alloc/pool/csrc/streams.h"

#include <algorithm>

#include "dtr_alloc/pool/csrc/insist.h"

namespace dtr {

StreamOrder::StreamOrder(std::unique_ptr<StreamEvents> events)
    : events_(std::move(events)), fences_(1) {}

StreamOrder::~StreamOrder() {
  for (const State& state : streams_) {
    for (void* event : state.outstanding) events_->give_back(event);
  }
}

std::int32_t StreamOrder::index(Stream stream) {
  stream = events_->canonical(stream);
  if (const auto apart = apart_.find(stream); apart != apart_.end()) return apart->second;
  const auto [at, is_new] = index_.try_emplace(stream, static_cast<std::int32_t>(streams_.size()));
  if (is_new) streams_.push_back({.name = stream});
  return at->second;
}

void StreamOrder::set_apart(Stream stream) {
  apart_.try_emplace(events_->canonical(stream), static_cast<std::int32_t>(streams_.size()));
  streams_.push_back({.name = stream});
}

Fence StreamOrder::make() {
  if (unused_.empty()) {
    fences_.emplace_back();
    return static_cast<Fence>(fences_.size() - 1);
  }
  const Fence fence = unused_.back();
  unused_.pop_back();
  return fence;
}

void StreamOrder::drop(Fence fence) {
  fences_[fence].clear();
  unused_.push_back(fence);
}

Fence StreamOrder::allocated(Fence now, std::int32_t stream) {
  const Fence fence = now != 0 ? now : make();
  fences_[fence].assign(1, {stream, 0});
  return fence;
}

void StreamOrder::used(Fence fence, std::int32_t stream) {
  std::vector<Use>& uses = fences_[fence];
  if (std::ranges::find(uses, stream, &Use::stream) == uses.end()) uses.push_back({stream, 0});
}

void StreamOrder::shared(Fence fence) {
  for (const auto& [name, stream] : index_) used(fence, stream);
}

void StreamOrder::follow(Fence fence, std::int32_t stream) {
  for (const Use& use : fences_[fence]) {
    if (use.stream != stream) order(streams_[use.stream], streams_[stream]);
  }
}

void StreamOrder::freed(Fence fence) {
  std::vector<Use>& uses = fences_[fence];
  for (std::size_t i = 0; i < uses.size(); i++) {
    State& state = streams_[uses[i].stream];
    bool recorded = state.retired;  // All its work is done.
    if (i > 0 && !recorded) {
      try {
        record(state);
        recorded = true;
      } catch (const std::exception&) {
      }
    }
    uses[i].number = state.recorded() + (recorded ? 0 : 1);
  }
}

Fence StreamOrder::join(Fence a, Fence b) {
  if (a == 0 || b == 0) return a + b;
  std::vector<Use>& uses = fences_[a];
  for (const Use& use : fences_[b]) {
    const auto same = std::ranges::find(uses, use.stream, &Use::stream);
    if (same == uses.end()) {
      uses.push_back(use);
    } else {
      same->number = std::max(same->number, use.number);
    }
  }
  drop(b);
  std::erase_if(uses, [&](const Use& use) { return use.number <= streams_[use.stream].done; });
  if (!uses.empty()) return a;
  drop(a);
  return 0;
}

bool StreamOrder::satisfied(const Use& use, std::int32_t stream) const {
  if (use.stream == stream || use.number <= streams_[use.stream].done) return true;
  const std::vector<Number>& waited = streams_[stream].waited;
  return static_cast<std::size_t>(use.stream) < waited.size() && use.number <= waited[use.stream];
}

bool StreamOrder::ready(Fence fence, std::int32_t stream) const {
  return std::ranges::all_of(fences_[fence],
                             [&](const Use& use) { return satisfied(use, stream); });
}

void StreamOrder::record(State& state) {
  state.outstanding.push_back(nullptr);
  try {
    state.outstanding.back() = events_->record(state.name);
  } catch (...) {
    state.outstanding.pop_back();
    throw;
  }
  outstanding_++;
}

void StreamOrder::reach(State& state, Number number) {
  if (number > state.recorded()) record(state);
}

void StreamOrder::complete(State& state, Number number) {
  while (state.done < number) {
    events_->give_back(state.outstanding.front());
    state.outstanding.pop_front();
    state.done++;
    outstanding_--;
  }
}

void StreamOrder::poll() {
  if (outstanding_ == 0) return;
  for (State& state : streams_) {
    while (!state.outstanding.empty() && events_->done(state.outstanding.front())) {
      complete(state, state.done + 1);
    }
  }
}

void StreamOrder::wait(Fence fence, std::int32_t stream) {
  for (const Use& use : fences_[fence]) {
    if (satisfied(use, stream)) continue;
    State& used = streams_[use.stream];
    reach(used, use.number);
    std::vector<Number>& waited = streams_[stream].waited;
    waited.resize(streams_.size());
    events_->wait(streams_[stream].name, used.outstanding[use.number - used.done - 1]);
    waited[use.stream] = use.number;
    waits_++;
  }
}

Fence StreamOrder::settle(Fence fence) {
  if (fence == 0) return 0;
  for (const Use& use : fences_[fence]) {
    State& used = streams_[use.stream];
    if (use.number <= used.done) continue;
    reach(used, use.number);
    events_->synchronize(used.outstanding[use.number - used.done - 1]);
    complete(used, use.number);
  }
  drop(fence);
  return 0;
}

void StreamOrder::mark(Fence fence) {
  for (const Use& use : fences_[fence]) reach(streams_[use.stream], use.number);
}

Fence StreamOrder::copy(Fence fence) {
  if (fence == 0) return 0;
  const Fence same = make();
  fences_[same] = fences_[fence];
  return same;
}

bool StreamOrder::passed(Fence fence) const {
  return std::ranges::all_of(
      fences_[fence], [&](const Use& use) { return use.number <= streams_[use.stream].done; });
}

// Makes `then` wait for all work that `first` was given so far.
void StreamOrder::order(State& first, State& then) {
  if (first.retired) return;
  record(first);
  events_->wait(then.name, first.outstanding.back());
  then.waited.resize(streams_.size());
  then.waited[&first - streams_.data()] = first.recorded();
}

void StreamOrder::gather(std::int32_t stream) {
  for (const auto& [name, other] : index_) {
    if (other != stream) order(streams_[other], streams_[stream]);
  }
}

void StreamOrder::spread(std::int32_t stream) {
  for (const auto& [name, other] : index_) {
    if (other != stream) order(streams_[stream], streams_[other]);
  }
}

void StreamOrder::retire(Stream stream) {
  stream = events_->canonical(stream);
  auto& among = apart_.contains(stream) ? apart_ : index_;
  const auto at = among.find(stream);
  if (at == among.end()) return;
  State& state = streams_[at->second];
  record(state);
  events_->synchronize(state.outstanding.back());
  complete(state, state.recorded());
  state.retired = true;
  among.erase(at);
}

void StreamOrder::check(const std::vector<Fence>& of_holes,
                        const std::vector<Fence>& of_live) const {
  std::vector<bool> seen(fences_.size());
  seen[0] = true;
  std::size_t in_use = 1;
  const auto see = [&](Fence fence, bool live) {
    if (fence == 0) {
      insist(!live, "a live block must name the stream that it was allocated on");
      return;
    }
    insist(fence < fences_.size() && !seen[fence], "a fence must belong to one block or old place");
    seen[fence] = true;
    in_use++;
    insist(!fences_[fence].empty(), "a fence must name a stream");
    std::vector<bool> named(streams_.size());
    for (const Use& use : fences_[fence]) {
      insist(!named[use.stream], "a fence must name a stream once");
      named[use.stream] = true;
      const State& state = streams_[use.stream];
      insist((use.number == 0) == live, "a block must have its events' numbers once it is free");
      insist(use.number <= state.recorded() + (state.retired ? 0 : 1),
             "a fence must wait for a recorded event or the next one");
    }
  };
  for (const Fence fence : of_holes) see(fence, false);
  for (const Fence fence : of_live) see(fence, true);
  insist(in_use + unused_.size() == fences_.size(), "a fence must belong to a block or be unused");

  std::int64_t outstanding = 0;
  for (const State& state : streams_) {
    outstanding += static_cast<std::int64_t>(state.outstanding.size());
    for (std::size_t other = 0; other < state.waited.size(); other++) {
      insist(state.waited[other] <= streams_[other].recorded(),
             "a stream cannot have waited for an event that is not recorded");
    }
  }
  insist(outstanding == outstanding_, "the events that are not complete must be counted");
}

}  // namespace dtr
