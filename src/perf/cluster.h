#pragma once
// Hardware of a cluster, with datasheet values.
#include <map>
#include <string>
#include <vector>

#include "config/fields.h"

namespace hero {

struct Cluster {
  int64_t gpus = 0, gpus_per_node = 0;
  double teraflops = 0;              ///< per GPU: dense matrix products in train.dtype
  double efficiency = 0.4;           ///< share of them that matrix products reach
  double memory_gib = 0;             ///< per GPU
  double reserved_gib = 4;           ///< for the driver, communication buffers and fragmentation
  double bandwidth_memory_gbs = 0;   ///< GB/s read and written; 0: non-matmul work takes no time
  double bandwidth_node_gbs = 0;     ///< GB/s that a GPU sends within its node, one direction
  double bandwidth_network_gbs = 0;  ///< GB/s that a GPU sends to other nodes, one direction
  double latency_node_us = 5;        ///< microseconds per message
  double latency_network_us = 10;
};

/// Keys of a cluster's TOML file and, with dashes for underscores, flags of `hero plan`. Fields without a
/// valid default are required.
std::vector<Field> cluster_fields(Cluster& cluster);

/// "gpus_per_node" -> "--gpus-per-node".
std::string cluster_flag(std::string key);

/// Reads `file` (empty: none), overridden by `given` values by key. UserError naming file, line and key for
/// unknown, missing or out-of-range fields.
Cluster read_cluster(const std::string& file, const std::map<std::string, FieldValue>& given);

}  // namespace hero
