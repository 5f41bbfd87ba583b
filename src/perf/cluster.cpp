#include "perf/cluster.h"

#include <algorithm>

#include "config/toml_file.h"
#include "io/error.h"

namespace hero {
namespace {

constexpr double kMost = 1 << 20;  // GPUs

Field count(const char* key, int64_t* value, const char* help) {
  return {.key = key, .value = value, .help = help, .min = 1, .max = kMost};
}
Field amount(const char* key, double* value, const char* help) {
  return {.key = key, .value = value, .help = help, .min = 0, .above_min = true};
}
Field perhaps_none(const char* key, double* value, const char* help) {
  return {.key = key, .value = value, .help = help, .min = 0};
}

void require_all(const std::vector<Field>& list, const std::string& file) {
  for (const Field& field : list) {
    if (assign(field, read(field))) continue;
    throw UserError(file.empty() ? cluster_flag(field.key) + ": found nothing, expected " + expected(field) +
                                       ", or a --cluster file"
                                 : file + ": " + field.key + ": found nothing, expected " + expected(field));
  }
}

}  // namespace

std::vector<Field> cluster_fields(Cluster& c) {
  return {
      count("gpus", &c.gpus, "GPUs in all"),
      count("gpus_per_node", &c.gpus_per_node, "GPUs of a node"),
      amount("teraflops", &c.teraflops, "TFLOP/s of a GPU: dense products in the run's type"),
      {.key = "efficiency",
       .value = &c.efficiency,
       .help = "share of the TFLOP/s that products reach",
       .min = 0,
       .max = 1,
       .above_min = true,
       .below_max = true},
      amount("memory_gib", &c.memory_gib, "GiB of memory of a GPU"),
      perhaps_none("reserved_gib", &c.reserved_gib, "GiB of a GPU that the run's tensors cannot have"),
      perhaps_none("bandwidth_memory_gbs", &c.bandwidth_memory_gbs,
                   "GB/s of a GPU's memory, for non-matmul work; 0: that takes no time"),
      amount("bandwidth_node_gbs", &c.bandwidth_node_gbs,
             "GB/s that a GPU sends within its node, one direction"),
      amount("bandwidth_network_gbs", &c.bandwidth_network_gbs,
             "GB/s that a GPU sends to other nodes, one direction"),
      perhaps_none("latency_node_us", &c.latency_node_us, "microseconds of a message within a node"),
      perhaps_none("latency_network_us", &c.latency_network_us, "microseconds of a message between nodes")};
}

std::string cluster_flag(std::string key) {
  std::ranges::replace(key, '_', '-');
  return "--" + key;
}

Cluster read_cluster(const std::string& file, const std::map<std::string, Scalar>& given) {
  Cluster cluster;
  const auto list = cluster_fields(cluster);
  for (const TomlEntry& entry : file.empty() ? std::vector<TomlEntry>{} : read_toml(file)) {
    const std::string where = file + ":" + std::to_string(entry.line) + ": " + entry.key;
    const Field* field = find_field(list, entry.key);
    if (!field) throw UserError(where + ": unknown key; did you mean " + nearest_key(list, entry.key) + "?");
    if (!entry.value || !assign(*field, *entry.value))
      throw UserError(where + ": found " + entry.shown + ", expected " + expected(*field));
  }
  for (const auto& [key, value] : given) {
    const Field* field = find_field(list, key);
    if (!assign(*field, value))
      throw UserError(cluster_flag(key) + ": found " + literal(value) + ", expected " + expected(*field));
  }
  require_all(list, file);
  if (cluster.gpus > cluster.gpus_per_node && cluster.gpus % cluster.gpus_per_node != 0) {
    throw UserError((file.empty() ? "--gpus" : file + ": gpus") + ": found " + std::to_string(cluster.gpus) +
                    ", expected a multiple of the node's " + std::to_string(cluster.gpus_per_node));
  }
  if (cluster.reserved_gib >= cluster.memory_gib) {
    throw UserError((file.empty() ? "--reserved-gib" : file + ": reserved_gib") + ": found " +
                    literal(cluster.reserved_gib) +
                    ", expected less than memory_gib = " + literal(cluster.memory_gib));
  }
  return cluster;
}

}  // namespace hero
