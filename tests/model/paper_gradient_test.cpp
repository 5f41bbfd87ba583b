// Proposition 2: the explicit historical path has no gradient (exactly zero), unless router.detach is false.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "oracle/oracle.h"
#include "oracle/router_stack.h"

namespace paper_gradient_test {

constexpr int64_t kLayers = 5, kTokens = 7;

hero::Config config(bool detach, hero::Dtype type) {
  auto c = small::fused(small::qwen());
  c.model.num_hidden_layers = kLayers;
  c.router.detach = detach;
  c.train.dtype = type;
  return c;
}

// d(weighted sum of Z^(l)) / d inputs; undefined if no path exists.
std::vector<at::Tensor> gradients(const at::Tensor& logits, const std::vector<at::Tensor>& inputs) {
  const auto coefficients = small::normal(logits.sizes(), 77).to(logits.scalar_type());
  return torch::autograd::grad({(logits * coefficients).sum()}, inputs, {}, /*retain_graph=*/true, false,
                               /*allow_unused=*/true);
}

TEST(PaperProposition2, NoPathFromLaterLogitsToEarlierRouters) {
  for (const auto type : {hero::Dtype::kFp64, hero::Dtype::kFp32, hero::Dtype::kBf16}) {
    const small::RouterStack stack(config(true, type), kLayers, 3);
    std::vector<at::Tensor> xs;
    for (const auto& x : small::inputs(kLayers, kTokens, 64, 9))
      xs.push_back(x.to(hero::train_dtype(stack.config)).set_requires_grad(true));
    const auto out = stack(xs);
    for (int64_t l = 2; l <= kLayers; ++l) {
      for (int64_t j = 1; j < l; ++j) {
        const auto g = gradients(out[l - 1].logits, {stack.weight(j), xs[j - 1], stack.weight(l), xs[l - 1]});
        EXPECT_FALSE(g[0].defined()) << "weights of layer " << j << " from layer " << l;
        EXPECT_FALSE(g[1].defined()) << "input of layer " << j << " from layer " << l;
        EXPECT_GT(g[2].slice(1, 64).abs().max().item<double>(), 0.0);
        EXPECT_GT(g[3].abs().max().item<double>(), 0.0);
      }
    }
  }
}

TEST(PaperProposition2, WithoutStopGradientThePathExists) {
  const small::RouterStack stack(config(false, hero::Dtype::kFp64), kLayers, 3);
  const auto out = stack(small::inputs(kLayers, kTokens, 64, 9));
  for (int64_t j = 1; j < kLayers; ++j) {
    const auto g = gradients(out[kLayers - 1].logits, {stack.weight(j)});
    ASSERT_TRUE(g[0].defined());
    EXPECT_GT(g[0].abs().max().item<double>(), 1e-6) << "layer " << j;
  }
}

TEST(PaperProposition2, RhoIsConstantForTheGradient) {
  const small::RouterStack stack(config(true, hero::Dtype::kFp64), kLayers, 3);
  auto xs = small::inputs(kLayers, kTokens, 64, 9);
  xs[kLayers - 1].set_requires_grad(true);
  const auto out = stack(xs);
  const auto logits = out[kLayers - 1].logits;
  // dZ/dx = W_O alone: RMS(x) inside rho adds nothing.
  const auto coefficients = small::normal(logits.sizes(), 77);
  const auto want = at::matmul(coefficients, stack.weight(kLayers).detach().slice(1, 0, 64));
  EXPECT_LT(small::relative_error(gradients(logits, {xs[kLayers - 1]})[0], want), 1e-13);
  // dZ/dW_R = coefficients^T (rho * H)
  std::vector<at::Tensor> history;
  for (int64_t j = 1; j < kLayers; ++j) history.push_back(out[j - 1].probs.detach());
  const auto rho = out[kLayers - 1].stats.narrow(1, hero::ops::RouteStat::kRho, 1);
  const auto want_r = at::matmul(coefficients.t(), rho * at::cat(history, 1));
  EXPECT_LT(small::relative_error(gradients(logits, {stack.weight(kLayers)})[0].slice(1, 64), want_r), 1e-13);
}

// The model's gradients are bitwise equal to those of a model with the same history as a constant, which has
// no explicit historical path.
std::vector<at::Tensor> model_gradients(hero::Transformer& model, const at::Tensor& tokens,
                                        const hero::RoutingHistory* constant) {
  const auto& c = model.config();
  const auto type = hero::train_dtype(c);
  const int64_t count = tokens.numel();
  hero::RoutingHistory running(model.layout(), count, type, false);
  const auto rotary =
      hero::rotary_table(at::arange(tokens.size(1)), hero::rotary_frequencies(c.model, type), c.model);
  auto x = small::normal({tokens.size(0), tokens.size(1), c.model.hidden_size}, 5)
               .to(type)
               .set_requires_grad(true);
  const auto input = x;
  for (int64_t l = 1; l <= kLayers; ++l) {
    hero::RoutingHistory copy(model.layout(), count, type, false);
    if (constant) {
      for (int64_t j = 1; j < kLayers; ++j) {
        copy.slot(j).probs.copy_(constant->slot(j).probs);
        copy.slot(j).sumsq.copy_(constant->slot(j).sumsq);
      }
    }
    x = model.layers()[l - 1](x, rotary, constant ? copy : running, {}, nullptr).x;
  }
  const auto coefficients = small::normal(x.sizes(), 6).to(type);
  torch::autograd::backward({(x * coefficients).sum()}, {});
  std::vector<at::Tensor> result = {input.grad()};
  for (auto& p : model.parameters().all()) {
    if (p.leaf.grad().defined()) result.push_back(p.leaf.grad().clone());
    p.leaf.mutable_grad() = at::Tensor();
  }
  return result;
}

TEST(PaperProposition2, GradientsEqualThoseOfAModelWithConstantHistory) {
  for (const auto type : {hero::Dtype::kFp64, hero::Dtype::kFp32, hero::Dtype::kBf16}) {
    hero::Transformer model(config(true, type));
    small::perturb(model, 0.05, 1);
    const auto tokens = small::tokens(2, 16, 96, 4);
    hero::RoutingHistory recorded(model.layout(), 32, hero::train_dtype(model.config()), false);
    {
      at::NoGradGuard no_grad;
      const auto& m = model.config().model;
      const auto rotary = hero::rotary_table(
          at::arange(16), hero::rotary_frequencies(m, hero::train_dtype(model.config())), m);
      auto x = small::normal({2, 16, 64}, 5).to(hero::train_dtype(model.config()));
      for (const auto& layer : model.layers()) x = layer(x, rotary, recorded, {}, nullptr).x;
    }
    const auto running = model_gradients(model, tokens, nullptr),
               constant = model_gradients(model, tokens, &recorded);
    ASSERT_EQ(running.size(), constant.size());
    for (size_t i = 0; i < running.size(); ++i)
      EXPECT_TRUE(running[i].equal(constant[i])) << name_of(type) << " " << i;
  }
}

// Earlier parameters still receive gradients from later layers through the hidden states.
TEST(PaperProposition2, HiddenStatePathRemains) {
  hero::Transformer model(config(true, hero::Dtype::kFp64));
  const auto out = model.forward(small::tokens(2, 8, 96, 4));
  for (const auto& p : model.parameters().all()) {
    if (!p.name.starts_with("model.layers.0.") || p.name.find("experts") != std::string::npos) continue;
    const auto g = gradients(out.routings.back().logits, {p.leaf});
    EXPECT_GT(g[0].abs().max().item<double>(), 0.0) << p.name;
  }
}

}  // namespace paper_gradient_test
