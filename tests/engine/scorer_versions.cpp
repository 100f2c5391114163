// Does each processor's version of the scorer round as the others do? Compiled and run by
// test_scorer.py, which reads what is printed.

#include <cstdio>
#include <random>

#include "runtime/csrc/policy/scorer.cpp"

namespace {

using namespace dtr;

constexpr Nanos kClock{1 << 20};

struct Rows {
  explicit Rows(std::size_t count) : bytes(5), nanos(3) {
    std::mt19937_64 draw(1);
    const auto number = [&](int bits) { return static_cast<std::int64_t>(draw() >> (64 - bits)); };
    for (std::size_t row = 0; row < count; ++row) {
      int bits = 1 + static_cast<int>(row % 60);
      for (auto& column : bytes) column.push_back(row % 7 == 0 ? 0 : number(bits));
      for (auto& column : nanos) column.push_back(number(bits) - number(20));
      recomputes.push_back(static_cast<std::int32_t>(row % 80));
      evictable.push_back(row % 5 != 0);
      order.push_back(row);
    }
  }
  ColumnsView view() const {
    return {.count = evictable.size(),
            .size = bytes[0].data(),
            .free_left = bytes[1].data(),
            .free_right = bytes[2].data(),
            .last_access = nanos[0].data(),
            .cost = nanos[1].data(),
            .neighbourhood = nanos[2].data(),
            .order = order.data(),
            .recomputes = recomputes.data(),
            .evictable = evictable.data()};
  }
  std::vector<std::vector<std::int64_t>> bytes, nanos;
  std::vector<std::int32_t> recomputes;
  std::vector<std::uint8_t> evictable;
  std::vector<std::uint64_t> order;
};

std::vector<decltype(&score_tile_anywhere)> versions() {
  std::vector<decltype(&score_tile_anywhere)> versions{score_tile_anywhere};
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) versions.push_back(score_tile_avx2);
  if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    versions.push_back(score_tile_avx512);
  }
#endif
  return versions;
}

// Prints the greatest error of a power, and how many of a version's scores are not the first's.
void compare_powers() {
  constexpr std::size_t kBases = 1 << 16;
  std::mt19937_64 draw(2);
  double error = 0;
  for (double exponent : {0.01, 0.3, 0.5, 0.999, 1.7, 2.0, 3.3, 4.0}) {
    for (std::size_t at = 0; at < kBases; at += kLanes) {
      Reals base;
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        auto whole = static_cast<std::int64_t>(draw() >> (1 + draw() % 62));
        base[lane] = static_cast<double>(whole) * (lane % 2 ? 1.0 : 0.37);
      }
      Reals power = raise(base, exponent);
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        double right = std::pow(base[lane], exponent);
        error = std::max(error, right == 0 ? power[lane] : std::abs(power[lane] - right) / right);
      }
    }
  }
  Rows rows(960);
  Heuristic h{.cost_exp = 1.3, .size_exp = 0.6, .staleness_exp = 2.5, .fragmentation = 0.2};
  std::vector<double> penalties(kPenalties, 1), first(960), other(960);
  int differing = 0;
  for (auto version : versions()) {
    bool begins = version == versions().front();
    version({rows.view(), 0, 960, h, kClock, shape_of(h), penalties.data(),
             (begins ? first : other).data()});
    differing += !begins && std::memcmp(first.data(), other.data(), 960 * sizeof(double)) != 0;
  }
  std::printf("powers are off by %.1e, %d versions differ in them\n", error, differing);
}

// How many numbers the formula has.
int numbers() {
  int count = 0;
  for_each_number({}, [&](ParameterRole, double) { ++count; });
  return count;
}

// Each bit of `terms` puts the term of a number into the score; none needs a power.
Heuristic with(int terms) {
  Heuristic h;
  for_each_parameter([&](const Parameter& parameter, auto member) {
    if constexpr (std::is_same_v<decltype(member), double Heuristic::*>) {
      const bool in = terms & 1;
      terms >>= 1;
      h.*member = parameter.role == ParameterRole::kExponent ? in
                  : parameter.role == ParameterRole::kWeight ? 0.3 * in
                                                             : 1 + 0.1 * in;
    }
  });
  return h;
}

}  // namespace

int main() {
  constexpr std::size_t kCount = 960;
  Rows rows(kCount);
  int compared = 0, differing = 0;
  for (int terms = 0; terms < 1 << numbers(); ++terms) {
    const Heuristic h = with(terms);
    Scorer scorer(h);
    std::vector<double> penalties, expected(kCount);
    for (std::size_t times = 0; times < kPenalties; ++times) {
      penalties.push_back(std::pow(h.recompute_penalty, static_cast<double>(times)));
    }
    for (std::size_t row = 0; row < kCount; ++row) {
      expected[row] = rows.evictable[row] ? score(h, scorer.terms(rows.view(), row, kClock))
                                          : std::numeric_limits<double>::quiet_NaN();
    }
    for (auto version : versions()) {
      std::vector<double> found(kCount);
      version({rows.view(), 0, kCount, h, kClock, shape_of(h), penalties.data(), found.data()});
      ++compared;
      for (std::size_t row = 0; row < kCount; ++row) {
        bool none = expected[row] != expected[row];
        differing += none ? found[row] == found[row] : found[row] != expected[row];
      }
    }
  }
  std::printf("%d versions compared, %d scores differ\n", compared, differing);
  compare_powers();
}
