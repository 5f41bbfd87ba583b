#include "ops/compare.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "ops/autograd.h"
#include "ops/cuda_library.h"
#include "ops/deferred.h"

namespace hero::test {
namespace {

// Must run before any test: LibTorch caches whether CUDA is available.
class CudaLibrary : public ::testing::Environment {
  void SetUp() override { load_cuda_library(); }
};
const auto* const cuda_library = ::testing::AddGlobalTestEnvironment(new CudaLibrary);

at::ScalarType wide(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

at::Tensor weighted_sum(const std::vector<at::Tensor>& outputs) {
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].requires_grad()) sum = sum + (outputs[i] * normal(outputs[i].sizes(), 900 + i)).sum();
  }
  return sum;
}

bool requires_gradient(const Operand& operand) { return operand.gradient && operand.role != Role::kFixed; }

std::vector<at::Tensor> leaves_of(const std::vector<Operand>& operands, at::ScalarType type,
                                  at::DeviceType device) {
  std::vector<at::Tensor> leaves;
  for (const auto& operand : operands) {
    const auto to = operand.role == Role::kFixed        ? operand.value.scalar_type()
                    : operand.role == Role::kAccumulate ? wide(type)
                                                        : type;
    auto leaf = operand.value.to(device, to, false, /*copy=*/true);
    leaf.set_requires_grad(requires_gradient(operand));
    if (requires_gradient(operand) && operand.role == Role::kWeight && type != wide(type))
      leaf.set_grad_dtype(wide(type));
    leaves.push_back(leaf);
  }
  return leaves;
}

// Runs backward from seeded gradients of all differentiable outputs.
void backward(const std::vector<at::Tensor>& outputs, uint64_t seed) {
  std::vector<at::Tensor> roots, seeds;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad()) continue;
    roots.push_back(outputs[i]);
    seeds.push_back(normal(outputs[i].sizes(), seed + i).to(outputs[i].options()));
  }
  if (!roots.empty()) ops::backward(roots, seeds);
}

constexpr uint64_t kSeed = 900;

// Forward passes of three micro-batches, then their backward passes.
void step(const Function& f, const std::vector<at::Tensor>& leaves) {
  std::vector<std::vector<at::Tensor>> outputs;
  for (int i = 0; i < 3; ++i) outputs.push_back(f(leaves));
  for (size_t i = 0; i < outputs.size(); ++i) backward(outputs[i], kSeed + 10 * i);
}

}  // namespace

::testing::AssertionResult close(const at::Tensor& got, const at::Tensor& want, Tolerance tolerance) {
  if (got.sizes() != want.sizes())
    return ::testing::AssertionFailure() << "shape " << got.sizes() << ", expected " << want.sizes();
  if (got.numel() == 0) return ::testing::AssertionSuccess();
  const auto a = got.detach().to(at::kCPU, at::kDouble).flatten(),
             b = want.detach().to(at::kCPU, at::kDouble).flatten();
  const auto rms = (b.square().sum() / b.ne(0).sum().clamp_min(1)).sqrt();
  const auto error = (a - b).abs(), allowed = b.abs() * tolerance.relative + rms * tolerance.absolute;
  const auto excess = at::where(error.le(allowed), 0.0, at::nan_to_num(error / allowed, 1e300, 1e300));
  const auto worst = excess.argmax().item<int64_t>();
  if (excess[worst].item<double>() == 0) {
    const double whole = error.norm().item<double>(), bound = tolerance.norm * b.norm().item<double>();
    if (whole <= bound) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure()
           << "every element is close, but the norm of their errors is " << whole << ", allowed " << bound;
  }
  return ::testing::AssertionFailure()
         << excess.gt(0).sum().item<int64_t>() << " of " << a.numel() << " elements differ; element " << worst
         << " of shape " << got.sizes() << " is " << a[worst].item<double>() << ", expected "
         << b[worst].item<double>() << " (error " << error[worst].item<double>() << ", allowed "
         << allowed[worst].item<double>() << ")";
}

::testing::AssertionResult same(const at::Tensor& got, const at::Tensor& want) {
  if (got.scalar_type() != want.scalar_type() || got.sizes() != want.sizes()) {
    return ::testing::AssertionFailure() << got.scalar_type() << " " << got.sizes() << ", expected "
                                         << want.scalar_type() << " " << want.sizes();
  }
  if (at::equal(got.detach(), want.detach())) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << got.detach().ne(want.detach()).sum().item<int64_t>() << " of "
                                       << got.numel() << " elements differ";
}

at::Tensor normal(at::IntArrayRef shape, uint64_t seed, double scale) {
  const auto generator = at::detail::createCPUGenerator(seed);
  return (at::randn(shape, generator, at::TensorOptions(at::kDouble)) * scale)
      .to(at::kBFloat16)
      .to(at::kDouble);
}

at::Tensor integers(int64_t low, int64_t high, at::IntArrayRef shape, uint64_t seed) {
  const auto generator = at::detail::createCPUGenerator(seed);
  return at::randint(low, high, shape, generator, at::TensorOptions(at::kLong));
}

Result run(const Function& f, const std::vector<Operand>& operands, at::ScalarType type,
           at::DeviceType device) {
  const auto leaves = leaves_of(operands, type, device);
  Result result{.outputs = f(leaves), .gradients = {}};
  backward(result.outputs, kSeed);
  for (const auto& leaf : leaves)
    if (leaf.requires_grad()) result.gradients.push_back(leaf.grad());
  return result;
}

void check_deferred(const Function& f, const std::vector<Operand>& operands, at::ScalarType type,
                    at::DeviceType device) {
  const auto want = leaves_of(operands, type, device), got = leaves_of(operands, type, device);
  step(f, want);
  ops::WeightGradientQueue queue;
  {
    const ops::DeferWeightGradients guard(&queue);
    step(f, got);
  }
  size_t deferred = 0, done = 0;
  const auto check = [&](size_t i) {
    EXPECT_TRUE(same(got[i].grad(), want[i].grad())) << "gradient of operand " << i;
  };
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!requires_gradient(operands[i])) {
      EXPECT_FALSE(got[i].grad().defined()) << "operand " << i;
    } else if (operands[i].role == Role::kWeight) {
      EXPECT_FALSE(got[i].grad().defined()) << "operand " << i;
      ++deferred;
    } else {
      check(i);
    }
  }
  EXPECT_EQ(queue.empty(), deferred == 0);
  queue.run([&](const at::Tensor& weight) {
    for (size_t i = 0; i < got.size(); ++i)
      if (got[i].is_same(weight)) check(i);
    ++done;
  });
  EXPECT_EQ(done, deferred);
  EXPECT_TRUE(queue.empty());
  for (size_t i = 0; i < operands.size(); ++i) {
    if (requires_gradient(operands[i])) check(i);
  }
}

void check_frozen(const Function& f, const std::vector<Operand>& operands, at::ScalarType type,
                  at::DeviceType device) {
  const auto want = leaves_of(operands, type, device);
  step(f, want);
  std::vector<size_t> trained;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (requires_gradient(operands[i])) trained.push_back(i);
  }
  const unsigned subsets = 1U << trained.size();
  for (unsigned kept = 1; kept + 1 < subsets; ++kept) {
    auto some = operands;
    for (size_t k = 0; k < trained.size(); ++k) some[trained[k]].gradient = (kept >> k & 1U) != 0;
    const auto got = leaves_of(some, type, device);
    step(f, got);
    for (const size_t i : trained) {
      SCOPED_TRACE(::testing::Message() << "operand " << i << ", kept " << kept);
      if (some[i].gradient) {
        EXPECT_TRUE(same(got[i].grad(), want[i].grad()));
      } else {
        EXPECT_FALSE(got[i].grad().defined());
      }
    }
  }
}

void check_accumulated(const Function& f, const std::vector<Operand>& operands, at::ScalarType type,
                       at::DeviceType device, std::optional<Tolerance> tolerance) {
  const auto want = leaves_of(operands, type, device), got = leaves_of(operands, type, device);
  step(f, want);
  {
    const ops::AccumulateWeightGradients guard;
    step(f, got);
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!requires_gradient(operands[i])) continue;
    EXPECT_TRUE(tolerance ? close(got[i].grad(), want[i].grad(), *tolerance)
                          : same(got[i].grad(), want[i].grad()))
        << "gradient of operand " << i;
  }
}

void check_finite_differences(const Function& f, const std::vector<Operand>& operands) {
  const auto result = run(f, operands, at::kDouble);
  size_t wanted = 0;
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!requires_gradient(operands[i])) continue;
    SCOPED_TRACE("operand " + std::to_string(i));
    const auto gradient = result.gradients[wanted++];
    ASSERT_TRUE(gradient.defined());
    std::vector<at::Tensor> values;
    for (const auto& operand : operands) values.push_back(operand.value.clone());
    for (size_t j = 0; j < operands.size(); ++j) {
      if (requires_gradient(operands[j])) values[j].set_requires_grad(true);
    }
    auto differences = at::empty_like(gradient);
    at::NoGradGuard no_grad;
    const auto loss = [&] {
      at::AutoGradMode grad(true);
      return weighted_sum(f(values)).item<double>();
    };
    auto* x = values[i].data_ptr<double>();
    for (int64_t n = 0; n < values[i].numel(); ++n) {
      const double at = x[n];
      x[n] = at + kStep;
      const double above = loss();
      x[n] = at - kStep;
      const double below = loss();
      x[n] = at;
      differences.view({-1})[n] = (above - below) / (2 * kStep);
    }
    EXPECT_TRUE(close(gradient, differences, {1e-7, 1e-7}));
  }
}

void check_reproducible(const Function& f, const std::vector<Operand>& operands, at::ScalarType type) {
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const auto one = run(f, operands, type);
  for (const int threads : {2, 2, 29}) {
    SCOPED_TRACE(threads);
    at::set_num_threads(threads);
    const auto other = run(f, operands, type);
    for (size_t i = 0; i < one.outputs.size(); ++i)
      EXPECT_TRUE(same(other.outputs[i], one.outputs[i])) << "output " << i;
    for (size_t i = 0; i < one.gradients.size(); ++i)
      EXPECT_TRUE(same(other.gradients[i], one.gradients[i])) << "gradient " << i;
  }
  at::set_num_threads(before);
}

void DeviceTest::SetUp() {
  if (device() == at::kCUDA && !load_cuda_library()) GTEST_SKIP() << cuda_unavailable_reason();
}

Tolerance DeviceTest::tolerance(Tolerance bf16) const {
  return type() == at::kDouble ? kFp64 : type() == at::kFloat ? kFp32 : bf16;
}

void DeviceTest::check(const Function& f, const Function& want, const std::vector<Operand>& operands,
                       const std::vector<Tolerance>& outputs, const std::vector<Tolerance>& gradients) const {
  const auto got = run(f, operands, type(), device()), exact = run(want, operands, at::kDouble, device());
  ASSERT_EQ(got.outputs.size(), outputs.size());
  ASSERT_EQ(got.gradients.size(), gradients.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_TRUE(close(got.outputs[i], exact.outputs[i], tolerance(outputs[i]))) << "output " << i;
  }
  {
    SCOPED_TRACE("without gradients");
    const at::NoGradGuard no_grad;
    const auto outputs = f(leaves_of(operands, type(), device()));
    ASSERT_EQ(outputs.size(), got.outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_TRUE(same(outputs[i], got.outputs[i])) << "output " << i;
  }
  size_t wanted = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!requires_gradient(operands[i])) continue;
    const auto& gradient = got.gradients[wanted];
    ASSERT_TRUE(gradient.defined()) << "operand " << i;
    EXPECT_EQ(gradient.scalar_type(), operands[i].role == Role::kValue ? type() : wide(type()))
        << "operand " << i;
    EXPECT_TRUE(close(gradient, exact.gradients[wanted], tolerance(gradients[wanted])))
        << "gradient of operand " << i;
    ++wanted;
  }
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<at::DeviceType, at::ScalarType>>& info) {
  const auto [device, type] = info.param;
  return std::string(device == at::kCPU ? "cpu" : "cuda") + "_" +
         (type == at::kBFloat16 ? "bf16"
          : type == at::kFloat  ? "fp32"
                                : "fp64");
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace hero::test
