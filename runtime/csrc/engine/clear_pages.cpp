#include "runtime/csrc/engine/clear_pages.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/csrc/engine/held.h"
#include "runtime/csrc/graph/owner.h"

namespace dtr {
namespace {

// What one pass evicts, while other threads wait: it may have to be written to a file first.
constexpr Bytes kAtOnce = Bytes{64} << 20;

struct Resident {
  Value* value;
  std::size_t first, last;  // Of the pages that its block touches, by their places in the list.
};

struct Page {
  std::int64_t number;
  std::int64_t blocks = 0;
  Bytes bytes = 0;  // Of the blocks that touch it, all of each.
  bool clearable = true;
  std::vector<Resident> residents = {};
};

// Those that a live block touches, by their numbers.
std::vector<Page> pages_in_use(const Pool& pool) {
  const Bytes size = pool.arena().page();
  std::vector<Page> pages;
  for (const Block& block : pool.snapshot()) {
    if (block.free) continue;
    const Bytes first = block.offset / size, last = (block.offset + block.size - 1) / size;
    const std::size_t place =
        pages.size() - (!pages.empty() && pages.back().number == first ? 1 : 0);
    for (Bytes at = first; at <= last; ++at) {
      if (pages.empty() || pages.back().number != at) pages.push_back({.number = at});
    }
    Value* value = owner_of(block);
    const bool goes = value && evictable(*value);
    for (std::size_t at = place; at < pages.size(); ++at) {
      Page& page = pages[at];
      ++page.blocks;
      page.bytes += block.size;
      page.clearable = page.clearable && goes;
      if (goes) page.residents.push_back({value, place, pages.size() - 1});
    }
  }
  return pages;
}

// The emptiest first, as far as one pass goes.
std::vector<const Page*> those_to_clear(const std::vector<Page>& pages) {
  std::vector<const Page*> found;
  for (const Page& page : pages) {
    if (page.clearable) found.push_back(&page);
  }
  std::ranges::sort(found, {}, &Page::bytes);
  Bytes sum = 0;
  const auto end = std::ranges::find_if(
      found, [&](const Page* page) { return std::exchange(sum, sum + page->bytes) >= kAtOnce; });
  found.erase(end, found.end());
  return found;
}

}  // namespace

bool clear_pages(const Pool& pool, Engine& engine, Bytes budget) {
  const Bytes page_size = pool.arena().page();
  Bytes beyond = pool.stats().committed - budget;
  std::vector<Page> pages = pages_in_use(pool);
  std::vector<const Page*> emptiest = those_to_clear(pages);
  std::vector<Held> held;  // With one value another may go, that lies on a page still to come.
  for (const Page* page : emptiest) {
    for (const Resident& resident : page->residents) held.emplace_back(engine, *resident.value);
  }
  bool any = false;
  for (const Page* page : emptiest) {
    // A tensor of many pages is too much for the free end of one.
    if (beyond < page_size || page->bytes > beyond + page_size) break;
    for (const Resident& resident : page->residents) {
      if (resident.value->candidate == kNowhere) continue;  // It went with an earlier page.
      engine.eviction().evict_or_move(*resident.value);
      any = true;
      for (std::size_t at = resident.first; at <= resident.last; ++at) {
        if (--pages[at].blocks == 0) beyond -= page_size;
      }
    }
  }
  return any;
}

}  // namespace dtr
