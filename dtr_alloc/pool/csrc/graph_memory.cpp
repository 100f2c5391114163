#include "dtr_alloc/pool/csrc/graph_memory.h"

#include <algorithm>
#include <stdexcept>

namespace dtr {

void GraphMemory::begin(Id id, Filter filter) {
  const MutexLock lock(mutex_);
  pools_[id].uses++;
  routes_.emplace_back(id, std::move(filter));
  routing_++;
}

void GraphMemory::end(Id id) {
  const MutexLock lock(mutex_);
  const auto at = std::ranges::find(routes_, id, &std::pair<Id, Filter>::first);
  if (at == routes_.end()) {
    throw std::invalid_argument(
        "no capture into this memory pool is under way: it was ended before");
  }
  routes_.erase(at);
  routing_--;
}

void GraphMemory::use(Id id) {
  const MutexLock lock(mutex_);
  pools_[id].uses++;
}

void GraphMemory::release(Id id) {
  std::vector<Block*> dead;
  {
    const MutexLock lock(mutex_);
    const auto at = pools_.find(id);
    if (at == pools_.end() || --at->second.uses > 0) return;
    dead = std::move(at->second.shared);
    for (const auto& [size, waiting] : at->second.waiting) dead.push_back(waiting.block);
    pools_.erase(at);
    for (const auto& [block, member] : blocks_) {
      if (member.id == id) pool_.record_every_stream(block);
    }
    std::erase_if(blocks_, [&](const auto& entry) { return entry.second.id == id; });
    blocks_count_ = static_cast<std::int64_t>(blocks_.size());
  }
  for (Block* block : dead) pool_.free(block);
}

int GraphMemory::uses(Id id) const {
  const MutexLock lock(mutex_);
  const auto at = pools_.find(id);
  return at == pools_.end() ? 0 : at->second.uses;
}

const GraphMemory::Id* GraphMemory::route(Stream stream) const {
  for (const auto& [id, filter] : routes_) {
    if (filter(stream)) return &id;
  }
  return nullptr;
}

Block* GraphMemory::take(Bytes size, Stream stream) {
  const MutexLock lock(mutex_);
  const Id* id = route(stream);
  if (id == nullptr) return nullptr;
  auto& waiting = pools_.at(*id).waiting;
  const Bytes rounded = round_to_granule(std::max(size, Bytes{1}));
  for (auto at = waiting.lower_bound(rounded); at != waiting.end() && at->first <= 2 * rounded;
       ++at) {
    if (at->second.stream != stream) continue;
    Block* block = at->second.block;
    waiting.erase(at);
    blocks_.at(block).live = true;
    return block;
  }
  return nullptr;
}

void GraphMemory::adopt(Block* block, Stream stream) {
  const MutexLock lock(mutex_);
  const Id* id = route(stream);
  if (id == nullptr) return;
  blocks_[block] = {*id, stream, true, false};
  blocks_count_ = static_cast<std::int64_t>(blocks_.size());
}

bool GraphMemory::keep(Block* block) {
  const MutexLock lock(mutex_);
  const auto at = blocks_.find(block);
  if (at == blocks_.end()) return false;
  at->second.live = false;
  Private& pool = pools_.at(at->second.id);
  if (at->second.shared) {
    pool.shared.push_back(block);
  } else {
    pool.waiting.emplace(block->size, Waiting{at->second.stream, block});
  }
  return true;
}

void GraphMemory::share(Block* block, Stream stream) {
  const MutexLock lock(mutex_);
  const auto at = blocks_.find(block);
  if (at != blocks_.end() && at->second.stream != stream) at->second.shared = true;
}

std::vector<const Block*> GraphMemory::live(Id id) const {
  const MutexLock lock(mutex_);
  std::vector<const Block*> blocks;
  for (const auto& [block, member] : blocks_) {
    if (member.live && member.id == id) blocks.push_back(block);
  }
  return blocks;
}

}  // namespace dtr
