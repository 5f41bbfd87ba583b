#pragma once
// One table of cases per operator for tests and benchmarks: single and odd numbers of tokens, widths with a
// partial last panel, widths without a packed kernel (not multiples of 16), empty and overloaded experts,
// dropped assignments, histories that are column ranges of a wider buffer. Benchmarks run the `timed` cases,
// with sizes of a small model.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace hero::test {

struct LinearCase {
  int64_t tokens, in, out;
  bool timed = false;
};
inline constexpr LinearCase kLinearCases[] = {
    {1, 16, 16},     {7, 64, 48},   {33, 80, 272},  {3, 80, 144},    {16, 48, 32},
    {1, 2048, 4096}, {65, 96, 144}, {130, 512, 64}, {50, 40, 24},    {50, 32, 24},
    {7, 64, 61},     {200, 48, 97}, {20, 32, 9},    {200, 16, 1040}, {2048, 256, 1024, true}};

struct RowsCase {  // rms_norm: [T, D]; swiglu: [T, 2F] with D = 2F
  int64_t tokens, width;
  bool timed = false;
};
inline constexpr RowsCase kRmsNormCases[] = {{1, 64}, {7, 17}, {129, 48}, {300, 256}, {2048, 256, true}};
inline constexpr RowsCase kSwigluCases[] = {{1, 2}, {7, 34}, {65, 96}, {130, 320}, {2048, 1024, true}};

struct RopeCase {
  int64_t batch, positions, heads, width;
  bool timed = false;
};
inline constexpr RopeCase kRopeCases[] = {
    {1, 1, 1, 2}, {2, 7, 3, 6}, {1, 65, 4, 16}, {3, 130, 2, 64}, {4, 512, 8, 32, true}};

struct LatentHeadsCase {
  int64_t batch, positions, heads, nope, rope, v_width;
  bool timed = false;
};
inline constexpr LatentHeadsCase kLatentHeadsCases[] = {
    {1, 1, 1, 1, 2, 1},  {2, 7, 3, 5, 6, 3},      {2, 5, 1, 16, 8, 24},  {3, 9, 3, 24, 64, 16},
    {1, 4, 2, 0, 10, 7}, {2, 3, 5, 128, 64, 128}, {1, 3, 2, 12, 80, 20}, {4, 512, 8, 64, 32, 64, true}};

struct EmbeddingCase {
  int64_t tokens, vocabulary, width;
  bool timed = false;
};
inline constexpr EmbeddingCase kEmbeddingCases[] = {
    {1, 1, 3}, {7, 5, 16}, {130, 300, 33}, {2048, 8192, 256, true}};

struct AttentionCase {
  int64_t batch, heads, kv_heads, queries, keys, qk_width, v_width;
  bool timed = false;
};
inline constexpr AttentionCase kAttentionCases[] = {{1, 1, 1, 1, 1, 8, 8},
                                                    {2, 4, 2, 7, 7, 16, 16},
                                                    {1, 4, 1, 33, 33, 24, 16},
                                                    {1, 2, 2, 5, 5, 8, 16},
                                                    {2, 4, 2, 3, 9, 24, 16},
                                                    {1, 2, 2, 1, 9, 16, 16},
                                                    {2, 4, 2, 64, 64, 16, 32},
                                                    {1, 4, 1, 96, 96, 32, 16},
                                                    {2, 2, 2, 160, 160, 48, 48},
                                                    {2, 4, 2, 128, 128, 64, 64},
                                                    {1, 4, 1, 192, 192, 128, 128},
                                                    {2, 2, 2, 320, 320, 48, 32},
                                                    {1, 2, 2, 256, 256, 192, 128},  // the paper's widths
                                                    {4, 8, 8, 512, 512, 32, 32, true},
                                                    {1, 8, 4, 2048, 2048, 96, 64, true}};

/// Attention within documents. Sequence b of the batch has documents of these lengths from entry b on, in
/// turn, until it is full.
struct DocumentAttentionCase {
  int64_t batch, heads, kv_heads, length, qk_width, v_width;
  std::vector<int64_t> documents;
  bool timed = false;
};
inline const std::vector<DocumentAttentionCase>& document_attention_cases() {
  static const std::vector<DocumentAttentionCase> cases = {
      {1, 1, 1, 1, 8, 8, {1}},
      {2, 4, 2, 7, 16, 16, {3, 1, 2}},
      {1, 2, 2, 33, 8, 16, {1, 1, 1, 2}},
      {3, 4, 2, 64, 16, 32, {16, 1, 30, 64}},
      {2, 4, 1, 96, 32, 16, {64, 32}},                  // at edges of blocks
      {4, 2, 2, 160, 48, 48, {63, 65, 1, 31, 200, 5}},  // next to edges
      {2, 2, 1, 320, 16, 16, {129, 127, 64}},
      {2, 2, 2, 288, 32, 16, {40, 200, 17}},
      {4, 8, 8, 512, 32, 32, {512}, true},
      {4, 8, 8, 512, 32, 32, {64}, true},
      {1, 8, 4, 2048, 96, 64, {2048}, true},
      {1, 8, 4, 2048, 96, 64, {180}, true}};
  return cases;
}

/// The first position of the document of every token, [B, S].
inline std::vector<int64_t> document_starts(int64_t batch, int64_t length,
                                            const std::vector<int64_t>& documents) {
  std::vector<int64_t> starts;
  for (int64_t b = 0; b < batch; ++b) {
    auto document = static_cast<size_t>(b);
    for (int64_t start = 0; start < length; ++document) {
      const int64_t end = std::min(length, start + documents[document % documents.size()]);
      starts.insert(starts.end(), static_cast<size_t>(end - start), start);
      start = end;
    }
  }
  return starts;
}

struct CachedAttentionCase {
  int64_t heads, kv_heads, qk_width, v_width;
  std::vector<std::pair<int64_t, int64_t>> sequences;  // cached positions, number of new ones
  bool values_in_keys = false;                         // as in multi-head latent attention
  bool timed = false;
};
inline const std::vector<CachedAttentionCase>& cached_attention_cases() {
  using Sequences = std::vector<std::pair<int64_t, int64_t>>;
  static const std::vector<CachedAttentionCase> cases = {
      {1, 1, 8, 8, {{1, 1}}},
      {4, 2, 16, 24, {{9, 1}}},
      {4, 4, 33, 7, {{12, 5}, {3, 3}, {40, 1}}},
      {8, 1, 80, 64, {{130, 2}, {7, 1}}, true},
      {8, 4, 32, 32, {{500, 1}, {300, 1}, {129, 1}}},
      {6, 2, 48, 16, {{20, 2}, {5, 1}}},  // three heads per key head
      {5, 1, 32, 48, {{33, 1}}},          // of five, four together
      {4, 1, 32, 32, {{17, 1}}},          // one key head for two threads
      {8, 4, 32, 32, Sequences(16, {160, 1}), false, true}};
  return cases;
}

struct HeadsLinearCase {
  int64_t tokens, heads, in, out;
  bool timed = false;
};
inline constexpr HeadsLinearCase kHeadsLinearCases[] = {{1, 1, 16, 16},    {3, 4, 32, 48},
                                                        {6, 2, 48, 80},    {5, 3, 24, 40},
                                                        {17, 8, 128, 256}, {16, 8, 64, 256, true}};

struct RouteCase {
  int64_t tokens, width, experts;
  int64_t visible = 0;  // M; the layers before the slot
  int64_t slots = 0;    // layers in the buffer; more than M + 1 for a wider buffer
  bool scale = true;
  bool timed = false;
};
inline constexpr RouteCase kRouteCases[] = {{1, 16, 16},
                                            {7, 64, 8},  // E not a multiple of 16
                                            {7, 64, 8, 2, 4},
                                            {70, 64, 60, 3, 5},
                                            {17, 32, 5, 3, 4},
                                            {130, 48, 1, 2, 3},
                                            {65, 32, 72, 2, 3, false},
                                            {33, 40, 16, 1, 2},  // D without a packed kernel
                                            {1, 32, 16, 1, 2},
                                            {7, 64, 48, 3, 5},
                                            {65, 80, 32, 2, 3},
                                            {65, 80, 32, 2, 3, false},
                                            {130, 256, 128, 5, 9},
                                            {96, 48, 112},
                                            {2048, 256, 32, 7, 8, true, true},
                                            {2048, 256, 32, 0, 8, true, true}};

struct TopExpertsCase {
  int64_t tokens, experts, k;
  int64_t groups = 1, kept_groups = 1;
  bool biased = false;
  bool timed = false;
};
inline constexpr TopExpertsCase kTopExpertsCases[] = {{1, 1, 1},
                                                      {7, 8, 2},
                                                      {7, 8, 8},
                                                      {65, 33, 5},
                                                      {33, 32, 4, 8, 3},
                                                      {33, 48, 6, 4, 2, true},
                                                      {9, 6, 2, 6, 2},  // groups of one expert
                                                      {130, 128, 8},
                                                      {65, 256, 8, 8, 4, true},
                                                      {20, 600, 40},
                                                      {2048, 32, 4, 1, 1, false, true},
                                                      {2048, 256, 8, 8, 4, true, true}};

enum class Load {
  kEven,     // experts sampled uniformly
  kOne,      // every assignment to the last expert
  kSparse,   // odd experts get no rows
  kDropped,  // every third assignment is -1
  kNone,     // every assignment is -1
};

struct ExpertsCase {
  int64_t tokens, k, experts, width, inner;  // inner: F
  Load load = Load::kEven;
  bool timed = false;
};
inline constexpr ExpertsCase kExpertsCases[] = {
    {1, 1, 8, 16, 16},
    {7, 2, 8, 48, 32},
    {65, 2, 8, 64, 80, Load::kOne},
    {130, 1, 8, 80, 48, Load::kOne},
    {33, 4, 16, 32, 16, Load::kSparse},
    {50, 2, 8, 96, 160, Load::kDropped},
    {20, 2, 8, 32, 32, Load::kNone},
    {31, 2, 8, 40, 24},                  // D and F without a packed kernel
    {31, 2, 8, 32, 24, Load::kDropped},  // F without a packed kernel
    {40, 8, 128, 64, 32},
    {1040, 1, 12, 32, 48},                  // some experts are split over two threads
    {700, 4, 24, 80, 48},                   // no expert is split; up to and above 128 rows
    {9, 1, 8, 32, 1040, Load::kSparse},     // large F
    {1100, 2, 4, 336, 144, Load::kSparse},  // rows enough for wgmma
    {2048, 4, 32, 256, 160, Load::kEven, true}};

struct CrossEntropyCase {
  int64_t tokens, width, vocabulary;
  bool ignored = false;  // every third target is -1
  bool timed = false;
};
inline constexpr CrossEntropyCase kCrossEntropyCases[] = {
    {1, 16, 16},        {7, 48, 80},    {65, 64, 272, true},          {513, 32, 304},
    {31, 24, 50, true}, {300, 16, 100}, {2048, 256, 8192, true, true}};

struct AdamWCase {
  std::vector<int64_t> sizes;
  bool timed = false;
};
inline const std::vector<AdamWCase>& adamw_cases() {
  static const std::vector<AdamWCase> cases = {
      {{1}}, {{17, 1, 250}}, {{32768, 5, 0, 70001}}, {{1 << 20, 1 << 22, 256, 1 << 21}, true}};
  return cases;
}

}  // namespace hero::test
