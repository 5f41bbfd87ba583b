#pragma once
// The machines that a plan is for, as datasheets give them.
#include <map>
#include <string>
#include <vector>

#include "config/fields.h"

namespace hero {

struct Cluster {
  int64_t gpus = 0, gpus_per_node = 0;
  double teraflops = 0;              ///< of a GPU: dense matrix products in the run's type
  double efficiency = 0.4;           ///< share of them that products reach
  double memory_gib = 0;             ///< of a GPU
  double reserved_gib = 4;           ///< of it for the driver, buffers of collectives and fragmentation
  double bandwidth_memory_gbs = 0;   ///< GB/s read and written; 0: what is no product takes no time
  double bandwidth_node_gbs = 0;     ///< GB/s that a GPU sends within its node, one direction
  double bandwidth_network_gbs = 0;  ///< GB/s that a GPU sends to other nodes, one direction
  double latency_node_us = 5;        ///< microseconds of a message
  double latency_network_us = 10;
};

/// Keys of a cluster's TOML file and, with dashes for underscores, flags of `hero plan`. Those whose value is
/// 0 and may not be 0 must be given.
std::vector<Field> cluster_fields(Cluster& cluster);

/// "gpus_per_node" -> "--gpus-per-node".
std::string cluster_flag(std::string key);

/// `file` (empty: none), then the values given by key. UserError naming file, line and key for what is
/// unknown, missing or out of bounds.
Cluster read_cluster(const std::string& file, const std::map<std::string, Scalar>& given);

}  // namespace hero
