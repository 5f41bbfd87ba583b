#pragma once
#include "perf/cluster.h"

namespace hero {

/// Four equal MoE layers in two stages, 8 micro-batches of 64 tokens.
inline Config small_run() {
  Config c;
  c.model.vocab_size = 512;
  c.model.hidden_size = 64;
  c.model.num_hidden_layers = 4;
  c.model.num_attention_heads = 4;
  c.model.num_key_value_heads = 2;
  c.model.head_dim = 16;
  c.model.num_experts = 8;
  c.model.num_experts_per_tok = 2;
  c.model.moe_intermediate_size = 32;
  c.router.kind = "hero";
  c.router.stages = 2;
  c.train.sequence = 64;
  c.train.micro_batch = 1;
  c.train.global_batch = 8;
  c.parallel.data = 1;
  return c;
}

/// Round numbers, no latency, only matrix products take time on a GPU.
inline Cluster round_cluster(int64_t gpus) {
  Cluster c;
  c.gpus = gpus;
  c.gpus_per_node = 4;
  c.teraflops = 1;
  c.efficiency = 0.5;
  c.memory_gib = 1;
  c.reserved_gib = 0;
  c.bandwidth_node_gbs = 100;
  c.bandwidth_network_gbs = 10;
  c.latency_node_us = c.latency_network_us = 0;
  return c;
}

}  // namespace hero
