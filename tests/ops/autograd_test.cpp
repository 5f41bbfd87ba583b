#include "ops/autograd.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

namespace hero {
namespace autograd_test {

// x^2 of one saved tensor.
at::Tensor squared(const at::Tensor& x) {
  const auto y = x.detach().pow(2);
  return ops::with_backward({y}, {x}, {x}, [](const auto& saved, const auto& gradients) {
    return std::vector<at::Tensor>{2 * saved[0].detach() * gradients[0]};
  })[0];
}

TEST(Autograd, WithBackwardConnectsInputsAndOutputs) {
  const auto x = at::arange(4, at::kDouble).set_requires_grad(true);
  const auto y = squared(3 * x);
  EXPECT_TRUE(y.requires_grad());
  y.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), 18 * x.detach()));
}

TEST(Autograd, WithBackwardPassesZerosForUnusedOutputs) {
  const auto x = at::ones({2}, at::kDouble).set_requires_grad(true);
  const auto y = x.detach();
  const auto outputs =
      ops::with_backward({y + 1, y + 2}, {x}, {}, [](const auto& saved, const auto& gradients) {
        EXPECT_TRUE(saved.empty());
        EXPECT_TRUE(at::equal(gradients[1], at::zeros({2}, at::kDouble)));
        return std::vector<at::Tensor>{gradients[0]};
      });
  ops::backward({outputs[0]}, {at::full({2}, 5.0, at::kDouble)});
  EXPECT_TRUE(at::equal(x.grad(), at::full({2}, 5.0, at::kDouble)));
}

TEST(Autograd, WithBackwardReleasesTensors) {
  c10::weak_intrusive_ptr<at::TensorImpl> saved(at::Tensor().getIntrusivePtr());
  c10::weak_intrusive_ptr<at::TensorImpl> output = saved;
  {
    auto x = at::ones({2}).set_requires_grad(true) * 3;
    const auto y = squared(x);
    saved = c10::weak_intrusive_ptr<at::TensorImpl>(x.getIntrusivePtr());
    output = c10::weak_intrusive_ptr<at::TensorImpl>(y.getIntrusivePtr());
    x = at::Tensor();
    EXPECT_FALSE(saved.expired());
    y.sum().backward();
    EXPECT_TRUE(saved.expired()) << "after the backward pass";
  }
  EXPECT_TRUE(output.expired());
}

TEST(Autograd, WithBackwardDoesNothingWithoutGradients) {
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(squared(at::ones({2}).set_requires_grad(true)).requires_grad());
}

TEST(Autograd, HookRunsAfterTheGradientIsAdded) {
  const auto x = at::ones({2}).set_requires_grad(true);
  int calls = 0;
  ops::set_post_accumulate_grad_hook(x, [&] {
    ++calls;
    EXPECT_TRUE(x.grad().defined());
  });
  x.sum().backward();
  x.sum().backward();
  EXPECT_EQ(calls, 2);
  ops::set_post_accumulate_grad_hook(x, nullptr);
  x.sum().backward();
  EXPECT_EQ(calls, 2);
}

}  // namespace autograd_test
}  // namespace hero
