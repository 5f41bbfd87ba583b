#pragma once
// Compares an operator with an independent expression. All operands and output gradients are sampled once and
// rounded to bf16 for every type under test, so bf16, fp32 and fp64 runs share one exact result, which the
// expression computes in fp64.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

namespace hero::test {

/// For every element |got - want| <= relative * |want| + absolute * rms(want), with the rms over nonzero
/// elements; and for the whole tensor |got - want|_2 <= norm * |want|_2.
struct Tolerance {
  double relative, absolute;
  double norm = relative + absolute;

  Tolerance operator*(double factor) const { return {factor * relative, factor * absolute, factor * norm}; }
};

/// Half a bf16 ulp, relative: the maximum error of rounding once.
inline constexpr double kBf16Rounding = 1.0 / 256;
/// Sums of a few hundred elements in fp32 and fp64.
inline constexpr Tolerance kFp32{1e-5, 1e-5}, kFp64{1e-12, 1e-12};
/// fp32 accumulation, rounded to bf16 once.
inline constexpr Tolerance kRoundedOnce{1.01 * kBf16Rounding, 1e-5};
/// Sums of products whose factors were rounded to bf16 once or twice. Each rounding has a relative rms error
/// of at most 2^-8 / sqrt(3), so three independent ones stay within 2^-8 for the whole tensor; elements
/// dominated by a few large factors have errors several times larger.
inline constexpr Tolerance kRoundedFactors{1.01 * kBf16Rounding, 8 * kBf16Rounding, kBf16Rounding};

::testing::AssertionResult close(const at::Tensor& got, const at::Tensor& want, Tolerance tolerance);
/// Equal type, shape and elements.
::testing::AssertionResult same(const at::Tensor& got, const at::Tensor& want);

enum class Role {
  kValue,       // in the type under test
  kWeight,      // the same, with its gradient in the accumulation type, as in training
  kAccumulate,  // in the accumulation type: fp64 for fp64, else fp32
  kFixed        // not converted: indices
};

struct Operand {
  at::Tensor value;
  Role role = Role::kValue;
  bool gradient = true;
};

using Function = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

struct Result {
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> gradients;  // of the operands that require one, in order
};

/// Seeded normal samples, rounded to bf16, as fp64.
at::Tensor normal(at::IntArrayRef shape, uint64_t seed, double scale = 1.0);
at::Tensor integers(int64_t low, int64_t high, at::IntArrayRef shape, uint64_t seed);

/// Runs f on leaves of these operands in `type` on `device`, then backward from seeded gradients of all
/// differentiable outputs.
Result run(const Function& f, const std::vector<Operand>& operands, at::ScalarType type,
           at::DeviceType device = at::kCPU);

/// Checks that three micro-batches with deferred weight gradients give bitwise the same gradients as without,
/// and that input gradients are complete before the weight gradients are computed.
void check_deferred(const Function& f, const std::vector<Operand>& operands, at::ScalarType type,
                    at::DeviceType device = at::kCPU);

/// Checks that with every subset of the operands frozen the others get bitwise the same gradients, and the
/// frozen ones none.
void check_frozen(const Function& f, const std::vector<Operand>& operands, at::ScalarType type,
                  at::DeviceType device);

/// Checks that three micro-batches whose kernels add weight gradients to the grads give gradients within
/// `tolerance` of those that autograd accumulates; bitwise equal without one.
void check_accumulated(const Function& f, const std::vector<Operand>& operands, at::ScalarType type,
                       at::DeviceType device, std::optional<Tolerance> tolerance = std::nullopt);

/// Compares fp64 gradients of f with central finite differences of every element.
void check_finite_differences(const Function& f, const std::vector<Operand>& operands);

/// Checks that outputs and gradients are bitwise equal with one thread, with two, with many, and when
/// repeated.
void check_reproducible(const Function& f, const std::vector<Operand>& operands, at::ScalarType type);

/// Test suite over devices and types; CUDA cases are skipped without a device.
class DeviceTest : public ::testing::TestWithParam<std::tuple<at::DeviceType, at::ScalarType>> {
 protected:
  void SetUp() override;
  at::DeviceType device() const { return std::get<0>(GetParam()); }
  at::ScalarType type() const { return std::get<1>(GetParam()); }
  /// The tolerance for the type under test; `bf16` for bf16.
  Tolerance tolerance(Tolerance bf16) const;
  /// Compares outputs and gradients of f with those of `want`, with one bf16 tolerance per output and per
  /// gradient. Without gradients, f must return the same outputs bit for bit.
  void check(const Function& f, const Function& want, const std::vector<Operand>& operands,
             const std::vector<Tolerance>& outputs, const std::vector<Tolerance>& gradients) const;
};

std::string name_of(const ::testing::TestParamInfo<std::tuple<at::DeviceType, at::ScalarType>>& info);

/// Message of the c10::Error that f throws; empty if it does not throw.
std::string error_of(const std::function<void()>& f);

#define HERO_ON_DEVICES(suite)                                                                            \
  INSTANTIATE_TEST_SUITE_P(, suite,                                                                       \
                           ::testing::Combine(::testing::Values(at::kCPU, at::kCUDA),                     \
                                              ::testing::Values(at::kBFloat16, at::kFloat, at::kDouble)), \
                           hero::test::name_of)

}  // namespace hero::test
