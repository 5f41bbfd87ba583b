#pragma once
// How an operator is held against an independent expression. Every operand, and every gradient that enters
// the outputs, is drawn once and rounded to bf16, whatever the type under test: so bf16, fp32 and fp64 runs
// all have the same exact answer, which the expression computes in fp64.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

namespace hero::test {

/// For every element |got - want| <= relative * |want| + absolute * rms(want), the rms over the elements that
/// are not exactly zero; and for all together |got - want|_2 <= norm * |want|_2.
struct Tolerance {
  double relative, absolute;
  double norm = relative + absolute;
};

/// Half a unit in the last place of bf16, relative: what rounding a result once costs at most.
inline constexpr double kBf16Rounding = 1.0 / 256;
/// Sums in fp32 and in fp64: a few hundred additions.
inline constexpr Tolerance kFp32{1e-5, 1e-5}, kFp64{1e-12, 1e-12};
/// Summed in fp32, rounded to bf16 once.
inline constexpr Tolerance kRoundedOnce{1.01 * kBf16Rounding, 1e-5};
/// Sums over factors that were themselves rounded to bf16 once or twice. Each rounding has an rms error of at
/// most 2^-8 / sqrt(3) of its factor, so three independent ones stay within 2^-8 of the result as a whole;
/// single elements that hang on a few large factors err by some times more.
inline constexpr Tolerance kRoundedFactors{1.01 * kBf16Rounding, 8 * kBf16Rounding, kBf16Rounding};

::testing::AssertionResult close(const at::Tensor& got, const at::Tensor& want, Tolerance tolerance);
/// Same type, shape and every bit pattern compared as numbers.
::testing::AssertionResult same(const at::Tensor& got, const at::Tensor& want);

enum class Role {
  kValue,   // in the type under test
  kWeight,  // the same, its gradient in the accumulation type as the trainer's leaves are made
  kWide,    // in the accumulation type: fp64 for fp64, else fp32
  kFixed    // as it is: indices
};

struct Operand {
  at::Tensor value;
  Role role = Role::kValue;
  bool gradient = true;
};

using Function = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

struct Result {
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> gradients;  // of the operands that want one, in order
};

/// Normal numbers of a seed, rounded to bf16, as fp64.
at::Tensor normal(at::IntArrayRef shape, uint64_t seed, double scale = 1.0);
at::Tensor integers(int64_t low, int64_t high, at::IntArrayRef shape, uint64_t seed);

/// Runs f on leaves of these operands in `type` on `device`, and backwards from seeded gradients of all
/// differentiable outputs.
Result run(const Function& f, const std::vector<Operand>& operands, at::ScalarType type,
           at::DeviceType device = at::kCPU);

/// Three micro-batches whose weight gradients are put off leave the same bits in every gradient as three that
/// put nothing off; those of values are there before the weights' are made.
void check_deferred(const Function& f, const std::vector<Operand>& operands, at::ScalarType type,
                    at::DeviceType device = at::kCPU);

/// Gradients of f in fp64 against central differences of every element.
void check_differences(const Function& f, const std::vector<Operand>& operands);

/// Outputs and gradients equal bit for bit with one thread, with two, and a second time.
void check_repeatable(const Function& f, const std::vector<Operand>& operands, at::ScalarType type);

/// A suite over devices and types; CUDA cases skip where there is none.
class DeviceTest : public ::testing::TestWithParam<std::tuple<at::DeviceType, at::ScalarType>> {
 protected:
  void SetUp() override;
  at::DeviceType device() const { return std::get<0>(GetParam()); }
  at::ScalarType type() const { return std::get<1>(GetParam()); }
  /// The tolerance of the type under test, `bf16` for bf16.
  Tolerance tolerance(Tolerance bf16) const;
  /// Runs f and the expression `want`, and compares outputs, then gradients; the bf16 tolerances are those of
  /// each output and each gradient.
  void check(const Function& f, const Function& want, const std::vector<Operand>& operands,
             const std::vector<Tolerance>& outputs, const std::vector<Tolerance>& gradients) const;
};

std::string name_of(const ::testing::TestParamInfo<std::tuple<at::DeviceType, at::ScalarType>>& info);

/// What c10::Error says when f throws it; empty if it does not throw.
std::string error_of(const std::function<void()>& f);

#define HERO_ON_DEVICES(suite)                                                                            \
  INSTANTIATE_TEST_SUITE_P(, suite,                                                                       \
                           ::testing::Combine(::testing::Values(at::kCPU, at::kCUDA),                     \
                                              ::testing::Values(at::kBFloat16, at::kFloat, at::kDouble)), \
                           hero::test::name_of)

}  // namespace hero::test
