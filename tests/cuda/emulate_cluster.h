#pragma once
// Emulates the functions of kernels/cluster.cuh on the CPU.
#include "cuda/emulate.h"

namespace hero::ops::cuda {

inline int cluster_blocks() { return static_cast<int>(emulate::cluster_size()); }
inline int cluster_rank() { return static_cast<int>(emulate::cluster_rank()); }
inline void synchronize_cluster(HERO_LOCATION_PARAMETERS) { emulate::cluster_barrier(HERO_LOCATION); }
template <typename T>
T* in_block(T* shared, int rank) {
  return static_cast<T*>(emulate::shared_address_in_block(shared, static_cast<unsigned>(rank)));
}

}  // namespace hero::ops::cuda
