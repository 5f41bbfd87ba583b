// The Layerwise Recurrent Router (arXiv 2408.06793, Eq. 4 to 6) on a stack of routers. model_oracle_test.cpp
// compares whole models and all gradients in fp64.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "oracle/oracle.h"
#include "oracle/router_stack.h"

namespace router_rmoe_test {

constexpr int64_t kLayers = 5, kTokens = 12;

hero::Config rmoe_config(hero::Dtype dtype, int64_t stages = 1) {
  auto c = small::qwen();
  c.router.kind = "rmoe";
  c.router.state_size = 7;
  c.router.stages = stages;
  c.train.dtype = dtype;
  return c;
}

std::string gru_of(int64_t l) { return "model.layers." + std::to_string(l - 1) + ".mlp.gate.gru."; }

// Logits of all layers by the equations; every state is rounded to `type` before the next layer reads it.
std::vector<at::Tensor> expected_logits(const small::RouterStack& stack, const std::vector<at::Tensor>& xs,
                                        at::ScalarType type) {
  const auto w = oracle::copy_weights(stack.parameters);
  std::vector<at::Tensor> all;
  at::Tensor state;
  std::string gru;
  for (int64_t l = 1; l <= kLayers; ++l) {
    if (l == 1 || stack.layout.stage_of()[l - 1] != stack.layout.stage_of()[l - 2]) {
      gru = gru_of(l);
      state = at::zeros({kTokens, stack.config.router.state_size}, at::kDouble);
    }
    const std::string gate = "model.layers." + std::to_string(l - 1) + ".mlp.gate.";
    const auto input = at::matmul(xs[l - 1].to(type).to(at::kDouble), w.at(gate + "projection.weight").t());
    state = oracle::gru_state(input, state, w, gru);
    all.push_back(at::matmul(state, w.at(gate + "weight").t()).detach());
    state = state.detach().to(type).to(at::kDouble);
  }
  return all;
}

TEST(RmoeRouter, LogitsFollowTheEquations) {
  for (const int64_t stages : {1, 2, 5}) {
    for (const auto& [dtype, type, tolerance] : {std::tuple(hero::Dtype::kFp64, at::kDouble, 1e-13),
                                                 std::tuple(hero::Dtype::kFp32, at::kFloat, 2e-6),
                                                 std::tuple(hero::Dtype::kBf16, at::kBFloat16, 2e-6)}) {
      small::RouterStack stack(rmoe_config(dtype, stages), kLayers, 5);
      // In bf16 the equations use the weights that the operators read.
      const at::NoGradGuard no_grad;
      for (auto& p : stack.parameters.all()) p.values.copy_(p.leaf);
      const auto xs = small::inputs(kLayers, kTokens, stack.config.model.hidden_size, 9);
      std::vector<at::Tensor> typed;
      for (const auto& x : xs) typed.push_back(x.to(type));
      const auto want = expected_logits(stack, xs, type);
      const auto got = stack(typed);
      for (int64_t l = 0; l < kLayers; ++l) {
        EXPECT_LT(small::relative_error(got[l].logits, want[l]), tolerance)
            << hero::name_of(dtype) << " layer " << l + 1;
        EXPECT_LT(small::relative_error(got[l].probs, want[l].softmax(1)), tolerance) << hero::name_of(dtype);
      }
    }
  }
}

// Largest gradient that the logits of the last layer send to the first layer's projection.
double gradient_across_layers(bool detach) {
  auto config = rmoe_config(hero::Dtype::kFp64);
  config.router.detach = detach;
  small::RouterStack stack(config, kLayers, 5);
  const auto out = stack(small::inputs(kLayers, kTokens, config.model.hidden_size, 9));
  torch::autograd::backward({out.back().logits.pow(2).sum()}, {});
  const auto& gradient = stack.routers.front().weights()[1].grad();
  return gradient.defined() ? gradient.abs().max().item<double>() : 0.0;
}

TEST(RmoeRouter, DetachStopsGradientsBetweenLayers) {
  EXPECT_EQ(gradient_across_layers(/*detach=*/true), 0.0);
  EXPECT_GT(gradient_across_layers(/*detach=*/false), 1e-6);
}

TEST(RmoeRouter, LayersOfAStageShareTheGru) {
  const small::RouterStack stack(rmoe_config(hero::Dtype::kFp64, /*stages=*/2), kLayers, 5);
  const auto& routers = stack.routers;
  for (size_t w = 2; w < 6; ++w) {
    EXPECT_TRUE(routers[1].weights()[w].is_same(routers[0].weights()[w]));
    EXPECT_TRUE(routers[2].weights()[w].is_same(routers[0].weights()[w]));
    EXPECT_FALSE(routers[3].weights()[w].is_same(routers[0].weights()[w]));
    EXPECT_TRUE(routers[4].weights()[w].is_same(routers[3].weights()[w]));
  }
  for (const auto& p : stack.parameters.all()) {
    const int64_t layers = p.name.starts_with(gru_of(1)) ? 3 : p.name.starts_with(gru_of(4)) ? 2 : 1;
    EXPECT_EQ(p.uses, layers) << p.name;
  }
}

}  // namespace router_rmoe_test
