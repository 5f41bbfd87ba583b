// The graph of a training step has no gradients that are tensors of zeros with a copy.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <set>

#include "oracle/small_models.h"

namespace autograd_graph_test {

std::map<std::string, int> node_counts(const at::Tensor& root) {
  std::map<std::string, int> counts;
  std::set<const torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> left{torch::autograd::impl::gradient_edge(root).function.get()};
  while (!left.empty()) {
    auto* node = left.back();
    left.pop_back();
    if (!node || !seen.insert(node).second) continue;
    ++counts[node->name()];
    for (const auto& edge : node->next_edges()) left.push_back(edge.function.get());
  }
  return counts;
}

TEST(AutogradGraph, ProjectionsAreSplitAndNotSliced) {
  for (auto config : {small::qwen(), small::deepseek()}) {
    config.model.v_head_dim = config.model.qk_nope_head_dim + config.model.qk_rope_head_dim;  // no padding
    const hero::Transformer model(config);
    const auto tokens = small::tokens(2, 8, config.model.vocab_size, 1);
    const auto counts = node_counts(model.forward(tokens).hidden_TD);
    EXPECT_GE(counts.at("SplitWithSizesBackward0"), config.model.num_hidden_layers);
    for (const char* name : {"SliceBackward0", "SelectBackward0", "AsStridedBackward0"})
      EXPECT_FALSE(counts.contains(name)) << name_of(config.model.model_type) << ": " << name;
  }
}

}  // namespace autograd_graph_test
