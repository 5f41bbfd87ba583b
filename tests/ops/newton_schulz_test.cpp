// The orthogonalization of Muon against the polynomial of the singular values in fp64.
#include <ATen/Parallel.h>

#include "ops/compare.h"
#include "ops/ops.h"
#include "ops/reference.h"

namespace hero::test {
namespace newton_schulz_test {

// Wide and tall matrices for the kernel, one that it does not support, a single row.
const std::vector<std::vector<int64_t>> kShapes = {{3, 32, 80},   {2, 80, 32}, {5, 16, 16}, {2, 160, 256},
                                                   {1, 272, 112}, {2, 7, 12},  {1, 1, 16}};

// U f(S) V^T with f the iterated polynomial.
at::Tensor expected(const at::Tensor& x) {
  auto [u, s, v] = at::linalg_svd(x.to(at::kDouble), /*full_matrices=*/false);
  s = s / s.square().sum(1, true).sqrt();
  for (int i = 0; i < 5; ++i) s = 3.4445 * s - 4.7750 * s.pow(3) + 2.0315 * s.pow(5);
  return at::matmul(u * s.unsqueeze(1), v);
}

double relative_error(const at::Tensor& got, const at::Tensor& want) {
  return ((got.to(at::kDouble) - want).norm() / want.norm()).item<double>();
}

using NewtonSchulzTest = DeviceTest;
HERO_ON_DEVICES(NewtonSchulzTest);

TEST_P(NewtonSchulzTest, Values) {
  if (type() == at::kBFloat16) GTEST_SKIP() << "values are fp32 or fp64";
  for (const auto& shape : kShapes) {
    SCOPED_TRACE(::testing::Message() << shape);
    const auto x = normal(shape, 3, 0.01).to(device(), type());
    const auto got = ops::newton_schulz(x);
    EXPECT_EQ(got.sizes(), x.sizes());
    EXPECT_EQ(got.scalar_type(), type() == at::kDouble ? at::kDouble : at::kBFloat16);
    // In bf16 the rounding errors of five iterations add up to a few percent.
    EXPECT_LT(relative_error(got.cpu(), expected(x.cpu())), type() == at::kDouble ? 1e-10 : 0.04);
  }
}

// The kernel rounds at the same places as the reference implementation.
TEST(NewtonSchulz, KernelMatchesReference) {
  for (const auto& shape : kShapes) {
    SCOPED_TRACE(::testing::Message() << shape);
    const auto x = normal(shape, 4).to(at::kFloat);
    const auto got = ops::newton_schulz(x);
    EXPECT_LT(relative_error(got, ops::newton_schulz_reference(x).to(at::kDouble)), 0.01);
  }
}

TEST(NewtonSchulz, StridedRowsAndZeros) {
  auto x = normal({1, 32, 96}, 5).to(at::kFloat);
  const auto columns = x.slice(2, 16, 96);
  EXPECT_TRUE(same(ops::newton_schulz(columns), ops::newton_schulz(columns.contiguous())));
  EXPECT_EQ(ops::newton_schulz(at::zeros({2, 16, 32})).abs().max().item<double>(), 0);
}

TEST(NewtonSchulz, BitwiseReproducibleForAnyThreadCount) {
  const int before = at::get_num_threads();
  const auto x = normal({6, 48, 32}, 6).to(at::kFloat);
  at::set_num_threads(1);
  const auto alone = ops::newton_schulz(x);
  at::set_num_threads(3);
  EXPECT_TRUE(same(ops::newton_schulz(x), alone));
  at::set_num_threads(before);
}

}  // namespace newton_schulz_test
}  // namespace hero::test
