#pragma once
// Random cases next to those of the tables (cases.h): all_cases(table) is the table and HERO_RANDOM_CASES
// cases (8) of the seed HERO_RANDOM_SEED (0; "new": another one in every process, which is printed). Operands
// depend only on a case's sizes, which failures print.
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <random>
#include <string>

#include "ops/cases.h"

namespace hero::test {

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  int64_t between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(random_); }
  /// From 1 to `most`; all orders of magnitude are equally frequent.
  int64_t count(int64_t most) { return between(1, between(1, most)); }
  /// Of rows: in half of all cases a multiple of 16, for which there are packed kernels.
  int64_t width(int64_t most) { return chance(0.5) ? 16 * count(most / 16) : count(most); }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[between(0, std::ssize(values) - 1)];
  }

 private:
  std::mt19937_64 random_;
};

inline void draw(Draw& d, LinearCase& c) { c = {d.count(300), d.width(400), d.width(400)}; }
inline void draw(Draw& d, RowsCase& c) { c = {d.count(300), 2 * d.width(300)}; }
inline void draw(Draw& d, RopeCase& c) { c = {d.count(4), d.count(140), d.count(8), 2 * d.count(40)}; }
inline void draw(Draw& d, LatentHeadsCase& c) {
  c = {d.count(3), d.count(40), d.count(6), d.between(0, 40), 2 * d.count(40), d.width(64)};
}
inline void draw(Draw& d, EmbeddingCase& c) { c = {d.count(200), d.count(300), d.width(100)}; }

inline void draw(Draw& d, AttentionCase& c) {
  const int64_t kv_heads = d.count(4), keys = 15 + d.count(240);  // with few keys gradients cancel
  c = {d.count(3), kv_heads * d.count(4), kv_heads,    d.chance(0.3) ? d.count(keys) : keys,
       keys,       d.width(130),          d.width(130)};
}
inline void draw(Draw& d, DocumentAttentionCase& c) {
  const int64_t kv_heads = d.count(3);
  c = {d.count(3), kv_heads * d.count(3), kv_heads, 15 + d.count(240), d.width(80), d.width(80), {}};
  c.documents.push_back(15 + d.count(200));
  for (int64_t i = d.between(0, 5); i > 0; --i) c.documents.push_back(d.count(200));
}
inline void draw(Draw& d, CachedAttentionCase& c) {
  const int64_t kv_heads = d.count(4);
  c = {kv_heads * d.count(6), kv_heads, d.width(100), d.width(100), {}};
  c.values_in_keys = c.v_width <= c.qk_width && d.chance(0.5);
  for (int64_t i = d.count(9); i > 0; --i) {
    const int64_t held = d.count(300);
    c.sequences.emplace_back(held, d.chance(0.5) ? 1 : d.count(std::min<int64_t>(held, 9)));
  }
}
inline void draw(Draw& d, HeadsLinearCase& c) { c = {d.count(40), d.count(8), d.width(200), d.width(200)}; }

inline void draw(Draw& d, RouteCase& c) {
  c = {d.count(200), d.width(200), d.width(140)};
  if (d.chance(0.3)) return;
  c.visible = d.between(0, 5);
  c.slots = c.visible + d.count(4);
  c.scale = d.chance(0.7);
}
inline void draw(Draw& d, TopExpertsCase& c) {
  const int64_t groups = d.chance(0.5) ? 1 : d.count(8), in_group = d.count(600 / groups);
  const int64_t kept = d.count(groups);
  c = {d.count(100), groups * in_group, d.count(std::min<int64_t>(kept * in_group, 40)), groups,
       kept,         d.chance(0.5)};
}
inline void draw(Draw& d, ExpertsCase& c) {
  const int64_t experts = d.count(64);
  c = {d.count(300),
       d.count(std::min<int64_t>(experts, 8)),
       experts,
       d.width(160),
       d.width(160),
       d.one_of({Load::kEven, Load::kEven, Load::kOne, Load::kSparse, Load::kDropped, Load::kNone})};
}
inline void draw(Draw& d, CrossEntropyCase& c) {
  c = {d.count(600), d.width(120), d.width(500), d.chance(0.5)};
}
inline void draw(Draw& d, AdamWCase& c) {
  for (int64_t i = d.count(5); i > 0; --i) c.sizes.push_back(d.chance(0.1) ? 0 : d.count(100'000));
}

inline uint64_t random_case_count() {
  const char* const text = std::getenv("HERO_RANDOM_CASES");
  return text ? std::stoull(text) : 8;
}

inline uint64_t random_case_seed() {
  static const uint64_t seed = [] {
    const char* const text = std::getenv("HERO_RANDOM_SEED");
    if (!text) return uint64_t{0};
    if (text != std::string("new")) return uint64_t{std::stoull(text)};
    const uint64_t fresh = std::random_device()();
    std::printf("HERO_RANDOM_SEED=%lu\n", fresh);
    return fresh;
  }();
  return seed;
}

template <typename Case>
struct AnyCase : Case {
  /// Factor of the bf16 tolerances: few elements, or a single large product, of random sizes have larger
  /// errors.
  double slack = 1;
};

/// The cases of a table, then the random ones.
template <typename Table>
auto all_cases(const Table& table) {
  using Case = std::remove_cvref_t<decltype(*std::begin(table))>;
  std::vector<AnyCase<Case>> cases;
  for (const auto& c : table) cases.push_back({c});
  Draw random(random_case_seed());
  for (uint64_t i = random_case_count(); i > 0; --i) {
    auto& c = cases.emplace_back();
    draw(random, static_cast<Case&>(c));
    c.slack = 4;
  }
  return cases;
}

}  // namespace hero::test
