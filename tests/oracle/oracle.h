#pragma once
// Independent reference implementation of the language model, its routers and losses: fp64, plain tensor
// operations, loops over heads and experts, dense gates instead of dispatch, one concatenated router matmul
// as in the paper. Shares with src only the configuration, the weight names in checkpoints and the random
// numbers of jitter; gradients come from autograd.
#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/parameters.h"

namespace oracle {

/// Weights by their names in checkpoints, fp64; trainable ones are leaves.
using Weights = std::map<std::string, at::Tensor>;

/// Copies of a model's weights and buffers.
Weights copy_weights(const hero::Parameters& parameters);

/// One MoE layer, l = index + 1.
struct LayerRouting {
  at::Tensor x = {};          ///< [T, D] the router's input
  at::Tensor state = {};      ///< [T, p] of an RMoE router
  at::Tensor history = {};    ///< [T, M*E] visible distributions, or the preceding state; undefined: none
  at::Tensor logits = {};     ///< [T, E]
  at::Tensor probs = {};      ///< [T, E] softmax, differentiable
  at::Tensor scores = {};     ///< [T, E] softmax or sigmoid, from which the weights are computed
  at::Tensor chosen = {};     ///< [T, E] 0/1, before capacity
  at::Tensor kept = {};       ///< the same, without dropped assignments
  at::Tensor gates = {};      ///< [T, E] weight of every expert, 0 if not chosen or dropped
  at::Tensor ids = {};        ///< [T, K] best first
  int64_t layer = 1;          ///< l
  int64_t decoder_layer = 0;  ///< from 0
};

/// State of a forward pass: what capacity and jitter depend on, and documents.
struct Pass {
  bool training = true;
  int64_t step = 0;
  int64_t first_token = 0;  ///< index of the micro-batch's first token in the step's batch
  /// Number of every token's document, int64 [B, S], read with train.document_mask and
  /// train.document_positions; undefined: each sequence is one.
  at::Tensor documents_BS = {};
};

struct Result {
  at::Tensor logits;                         ///< [B, S, V]
  std::vector<at::Tensor> modules;           ///< the same of every multi-token prediction module, in training
  std::vector<LayerRouting> layers;          ///< of the main model, then of the modules
  std::vector<double> max_attention_logits;  ///< per decoder layer
};

Result forward(const hero::Config& config, const Weights& weights, const at::Tensor& tokens_BS,
               const Pass& pass = {});

struct Losses {
  at::Tensor total, lm, mtp, balance, z, coupling;
};

/// shares_LE: expert fractions for router.balance = "global". Terms are means over layers (over pairs for the
/// coupling loss), as logged, 0 if the coefficient is 0; the total sums balance and z over layers.
/// documents_BS: Pass::documents_BS, which limits the targets of the modules.
Losses losses(const hero::Config& config, const Result& result, const at::Tensor& targets_T, int64_t sequence,
              const at::Tensor& shares_LE, const at::Tensor& documents_BS = {});

/// Router stage of each layer: equal sizes, the first stages one layer larger if necessary.
std::vector<int64_t> stages(int64_t layers, int64_t count);
/// The same, or stages of the configured sizes.
std::vector<int64_t> stages(int64_t layers, const hero::RouterConfig& router);

/// S(l), l from 1, oldest first.
std::vector<int64_t> visible(int64_t l, const hero::RouterConfig& router,
                             const std::vector<int64_t>& stage_of);

/// sqrt(mean of squares) of each row, [T, 1].
at::Tensor rms(const at::Tensor& rows);

/// Z of layer l from its input and the visible distributions, oldest first.
at::Tensor router_logits(const at::Tensor& x, const at::Tensor& weight,
                         const std::vector<at::Tensor>& history, int64_t l, const hero::RouterConfig& router);

/// h = (1 - z) n + z h' [T, p] of a GRU with input x' [T, p] and preceding state h' (arXiv 2408.06793, Eq.
/// 5); `gru` is the prefix of its four weights, whose rows are those of r, z and n.
at::Tensor gru_state(const at::Tensor& input, const at::Tensor& before, const Weights& weights,
                     const std::string& gru);

/// Indices of the k largest elements of every row, largest first; ties in index order.
at::Tensor topk_indices(const at::Tensor& rows, int64_t k);

}  // namespace oracle
