// AdamW and sums of squares over tables of tensors, against the equations in fp64.
#include "cuda/run.h"
#include "ops/cuda/kernels/adamw.cuh"
#include "ops/cuda/kernels/sum_of_squares.cuh"

namespace hero::test {
namespace adamw_kernels_test {

using namespace ops::cuda;

static_assert(sizeof(AdamWTable<c10::BFloat16>) + sizeof(AdamWParams) <= 4096, "limit of kernel arguments");
static_assert(sizeof(SquaresTable) + sizeof(double*) <= 4096, "limit of kernel arguments");

constexpr double kScale = 0.3, kGuard = 77;

struct Case {
  std::vector<int64_t> sizes;
  bool unaligned = false;  // of most tensors, one of the arrays in State starts at an odd element
};

std::vector<Case> cases() {
  constexpr int64_t kSquares = kSquaresChunk;
  // Enough tensors for three launches of AdamW and two of the sum.
  std::vector<int64_t> many;
  for (int64_t i = 0; i < 150; ++i) many.push_back(i % 7);
  return {{{1}},
          {{0, 1, 3, 4}},
          {{0}},
          {{17, 1, 250}},
          {{kAdamWChunk - 1, 5, kAdamWChunk, 2 * kAdamWChunk + 2, 33, 34, 35}, true},
          {{kSquares + 3, 1030, kSquares + 5}, true},
          {many, true}};
}

// A tensor between two elements that kernels must leave unchanged.
struct Guarded {
  at::Tensor storage, inner;

  Guarded(const at::Tensor& values, at::ScalarType type, bool unaligned) {
    const int64_t n = values.numel(), begin = unaligned ? 5 : 4;
    storage = at::full({begin + n + 1}, kGuard, at::TensorOptions(type));
    inner = storage.slice(0, begin, begin + n);
    inner.copy_(values);
  }
  [[nodiscard]] bool intact() const {
    const int64_t begin = inner.storage_offset();
    return storage.slice(0, 0, begin).eq(kGuard).all().item<bool>() &&
           storage.slice(0, begin + inner.numel()).eq(kGuard).all().item<bool>();
  }
};

// Gradients and moments vary widely in magnitude. Half of the tensors have leaves.
struct State {
  std::vector<Guarded> values, gradients, first, second, leaves;

  State(const Case& c, at::ScalarType leaf) {
    uint64_t seed = 0;
    for (size_t i = 0; i < c.sizes.size(); ++i) {
      size_t arrays = 0;
      const auto random = [&] { return normal({c.sizes[i]}, ++seed); };
      const auto add = [&](std::vector<Guarded>& to, const at::Tensor& x, at::ScalarType type) {
        to.emplace_back(x, type, c.unaligned && i % 6 == ++arrays);
      };
      add(values, random(), at::kFloat);
      add(gradients, random() * at::exp(4 * random()), at::kFloat);
      add(first, random() * 0.1, at::kFloat);
      add(second, random().square(), at::kFloat);
      add(leaves, random(), leaf);
    }
  }
  [[nodiscard]] std::vector<at::Tensor> storages() const {
    std::vector<at::Tensor> all;
    for (const auto* tensors : {&values, &gradients, &first, &second, &leaves})
      for (const auto& x : *tensors) all.push_back(x.storage);
    return all;
  }
};

bool has_leaf(size_t tensor) { return tensor % 4 < 2; }

template <typename T>
void run_adamw(const State& state, const AdamWParams& params) {
  for_each_table<AdamWTable<T>>(
      state.values.size(),
      [&](AdamWTable<T>& table, size_t i) {
        table.add({.value = state.values[i].inner.data_ptr<float>(),
                   .gradient = state.gradients[i].inner.const_data_ptr<float>(),
                   .first = state.first[i].inner.data_ptr<float>(),
                   .second = state.second[i].inner.data_ptr<float>(),
                   .leaf = has_leaf(i) ? state.leaves[i].inner.data_ptr<T>() : nullptr},
                  state.values[i].inner.numel());
      },
      [&](const AdamWTable<T>& table) {
        launch(state.storages(), adamw<T>, {table.blocks}, {kAdamWThreads}, table, params);
      });
}

template <typename T>
void check_adamw(const Case& c, at::ScalarType type, bool scaled, double count) {
  SCOPED_TRACE(::testing::Message() << c.sizes.size() << " tensors, first of " << c.sizes[0] << ", scaled "
                                    << scaled << ", step " << count);
  const State before(c, type), after(c, type);
  const auto step = static_cast<float>(count), skip = 0.0f;
  const double scale = kScale;
  const AdamWParams params{.lr = 0.01,
                           .beta1 = 0.9,
                           .beta2 = 0.95,
                           .weight_decay = 0.1,
                           .eps = 1e-6,
                           .step = &step,
                           .scale = scaled ? &scale : nullptr,
                           .skip = scaled ? &skip : nullptr};
  run_adamw<T>(after, params);
  for (const auto* tensors : {&after.values, &after.first, &after.second, &after.leaves})
    for (const auto& x : *tensors) EXPECT_TRUE(x.intact());
  for (size_t i = 0; i < c.sizes.size(); ++i) {
    const auto wide = [&](const std::vector<Guarded>& of) { return of[i].inner.to(at::kDouble); };
    const auto g = wide(before.gradients) * (scaled ? kScale : 1.0);
    const auto first = params.beta1 * wide(before.first) + (1 - params.beta1) * g;
    const auto second = params.beta2 * wide(before.second) + (1 - params.beta2) * g.square();
    const auto m = first / (1 - std::pow(params.beta1, count)),
               v = second / (1 - std::pow(params.beta2, count));
    const auto value =
        wide(before.values) * (1 - params.lr * params.weight_decay) - params.lr * m / (v.sqrt() + params.eps);
    EXPECT_TRUE(close(after.first[i].inner, first, kFp32));
    EXPECT_TRUE(close(after.second[i].inner, second, kFp32));
    EXPECT_TRUE(close(after.values[i].inner, value, kFp32));
    EXPECT_TRUE(
        same(after.leaves[i].inner, has_leaf(i) ? after.values[i].inner.to(type) : before.leaves[i].inner));
    EXPECT_TRUE(same(after.gradients[i].storage, before.gradients[i].storage));
  }
}

TEST(CudaAdamW, ValuesMomentsAndLeavesMatchEquations) {
  for (const auto& c : cases()) {
    check_adamw<c10::BFloat16>(c, at::kBFloat16, /*scaled=*/false, 3);
    check_adamw<c10::BFloat16>(c, at::kBFloat16, /*scaled=*/true, 1);
  }
  check_adamw<c10::Half>({{17, 1, 250}, true}, at::kHalf, /*scaled=*/true, 100000);
}

// m = -g / 9, rounded: the sum is of the size of the rounding errors of its terms.
TEST(CudaAdamW, FirstMomentIsAccurateIfItsTermsCancel) {
  const State state({{1000}}, at::kBFloat16);
  const auto &gradients = state.gradients[0].inner, &moments = state.first[0].inner;
  gradients.copy_(normal({1000}, 1));
  const double beta1 = 0.9, scale = kScale;
  const auto g = gradients.to(at::kDouble) * scale;
  moments.copy_(g * ((beta1 - 1) / beta1));
  const auto want = beta1 * moments.to(at::kDouble) + (1 - beta1) * g;
  const float step = 2;
  const AdamWParams params{
      .lr = 0.01, .beta1 = beta1, .beta2 = 0.95, .eps = 1e-6, .step = &step, .scale = &scale};
  run_adamw<c10::BFloat16>(state, params);
  EXPECT_TRUE(close(moments, want, kFp32));
}

TEST(CudaAdamW, SkippedStepChangesNothing) {
  const Case c{{17, kAdamWChunk + 1}, true};
  const State before(c, at::kBFloat16), after(c, at::kBFloat16);
  const float step = 3, skip = 1;
  const AdamWParams params{
      .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-6, .step = &step, .skip = &skip};
  run_adamw<c10::BFloat16>(after, params);
  const auto got = after.storages(), want = before.storages();
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(same(got[i], want[i]));
}

double run_sum(const std::vector<at::Tensor>& tensors, bool finite = true) {
  int64_t chunks = 0;
  for (const auto& x : tensors) chunks += (x.numel() + kSquaresChunk - 1) / kSquaresChunk;
  const auto partial = at::full({chunks}, kGuard, at::kDouble), total = at::full({}, kGuard, at::kDouble);
  // The outputs to compare; NaN differs from itself.
  const auto outputs = [&](const at::Tensor& x) {
    return finite ? std::vector{x} : std::vector<at::Tensor>();
  };
  auto* next = partial.data_ptr<double>();
  for_each_table<SquaresTable>(
      tensors.size(),
      [&](SquaresTable& table, size_t i) {
        table.add(tensors[i].const_data_ptr<float>(), tensors[i].numel());
      },
      [&](const SquaresTable& table) {
        launch(outputs(partial), squares_of_chunks, {table.blocks}, {kSquaresThreads}, table, next);
        next += table.blocks;
      });
  launch(outputs(total), add_chunks, {1}, {kTotalThreads}, chunks, partial.const_data_ptr<double>(),
         total.data_ptr<double>());
  return total.item<double>();
}

TEST(CudaSumOfSquares, MatchesSumInFp64) {
  for (const auto& c : cases()) {
    SCOPED_TRACE(::testing::Message() << c.sizes.size() << " tensors, first of " << c.sizes[0]);
    std::vector<at::Tensor> tensors;
    double want = 0;
    for (const auto& g : State(c, at::kBFloat16).gradients) {
      tensors.push_back(g.inner);
      want += g.inner.to(at::kDouble).square().sum().item<double>();
    }
    EXPECT_NEAR(run_sum(tensors), want, want * 1e-6);
  }
  // Equal elements, whose rounding errors add up; aligned and unaligned.
  for (const int64_t begin : {0, 1}) {
    const auto equal = at::full({100001}, 0.1f, at::kFloat).slice(0, begin);
    const double want = equal.to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(run_sum({equal}), want, want * 1e-6);
  }
}

TEST(CudaSumOfSquares, PropagatesNonFiniteValues) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const int64_t at : {0, 40000, 70000}) {
      const auto x = at::ones({70001});
      x[at] = bad;
      EXPECT_FALSE(std::isfinite(run_sum({at::ones({3}), x}, /*finite=*/false))) << bad << " at " << at;
    }
  }
}

}  // namespace adamw_kernels_test
}  // namespace hero::test
