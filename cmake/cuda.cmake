# libhero_cuda.so: our CUDA kernels, in the folder of libhero.so and loaded only if there is a device. HERO_CUDA=AUTO
# builds it if an nvcc of the CUDA release of the torch wheel is found.
set(HERO_CUDA AUTO CACHE STRING "CUDA kernels: AUTO, ON or OFF")
set_property(CACHE HERO_CUDA PROPERTY STRINGS AUTO ON OFF)
file(STRINGS "${HERO_TORCH_DIR}/version.py" torch_cuda REGEX "^cuda")
string(REGEX MATCH "[0-9]+" torch_cuda "${torch_cuda}")

if(NOT HERO_CUDA STREQUAL "OFF" AND torch_cuda)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit)
  endif()
  if(CMAKE_CUDA_COMPILER AND CUDAToolkit_FOUND AND CUDAToolkit_VERSION_MAJOR EQUAL torch_cuda)
    set(hero_cuda_found TRUE)
  endif()
endif()
if(HERO_CUDA STREQUAL "ON" AND NOT hero_cuda_found)
  message(FATAL_ERROR "HERO_CUDA: found no CUDA toolkit with nvcc, expected CUDA ${torch_cuda} as in the torch wheel")
endif()
if(NOT hero_cuda_found)
  return()
endif()

hero_import_torch_library(torch_cuda)
hero_import_torch_library(c10_cuda)
add_library(
  hero_cuda SHARED
  src/ops/cuda/cached_attention.cu
  src/ops/cuda/top_experts.cu
  src/ops/cuda/dispatch.cu
  src/ops/cuda/experts.cu
  src/ops/cuda/latent_heads.cu
  src/ops/cuda/linear.cu
  src/ops/cuda/linear_cross_entropy.cu
  src/ops/cuda/norm_rope.cu
  src/ops/cuda/rms_norm.cu
  src/ops/cuda/rope.cu
  src/ops/cuda/route.cu
  src/ops/cuda/swiglu.cu
  src/ops/cuda/adamw.cu)
set_target_properties(hero_cuda PROPERTIES CUDA_STANDARD 20 CUDA_RUNTIME_LIBRARY Shared DEFINE_SYMBOL ""
                                          UNITY_BUILD_BATCH_SIZE 7)
target_link_libraries(hero_cuda PRIVATE hero_lib hero::torch_cuda hero::c10_cuda CUDA::cudart)
target_compile_options(hero_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fPIC;--expt-relaxed-constexpr>")
target_sources(hero_cuda PRIVATE src/train/cuda/graph.cpp)

# Instructions of Hopper's tensor cores exist only in sm_90a.
add_library(hero_cuda_sm90 OBJECT src/ops/cuda/experts_sm90.cu)
set_target_properties(hero_cuda_sm90 PROPERTIES CUDA_STANDARD 20 CUDA_RUNTIME_LIBRARY Shared CUDA_ARCHITECTURES 90a-real)
target_link_libraries(hero_cuda_sm90 PRIVATE hero_lib hero::torch_cuda hero::c10_cuda CUDA::cudart)
target_compile_options(hero_cuda_sm90 PRIVATE -Xcompiler=-fPIC --expt-relaxed-constexpr)
target_sources(hero_cuda PRIVATE $<TARGET_OBJECTS:hero_cuda_sm90>)

# cuDNN's header-only frontend, which also calls NVRTC, is a package of its own; cudnn.h, nccl.h and the libraries are
# installed with the wheel.
get_filename_component(hero_wheels "${HERO_TORCH_DIR}" DIRECTORY)
if(NOT EXISTS "${hero_wheels}/include/cudnn_frontend.h")
  message(FATAL_ERROR "${hero_wheels}: found no include/cudnn_frontend.h; run scripts/install.sh or pip install nvidia-cudnn-frontend==1.22.0")
endif()
foreach(library cudnn/lib/libcudnn.so.9 cu${torch_cuda}/lib/libnvrtc.so.${torch_cuda})
  get_filename_component(name "${library}" NAME)
  add_library(hero::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(hero::${name} PROPERTIES IMPORTED_LOCATION "${hero_wheels}/nvidia/${library}")
  target_link_libraries(hero_cuda PRIVATE hero::${name})
endforeach()
target_include_directories(hero_cuda SYSTEM PRIVATE "${hero_wheels}/include" "${hero_wheels}/nvidia/cudnn/include")
target_sources(hero_cuda PRIVATE src/ops/cuda/attention.cpp)
# Without its JSON serialization, which nothing here calls, and with -O1 the frontend compiles in half the time. It
# makes plans once per shape and launches them.
set_source_files_properties(
  src/ops/cuda/attention.cpp PROPERTIES COMPILE_OPTIONS "-O1" COMPILE_DEFINITIONS CUDNN_FRONTEND_SKIP_JSON_LIB)

target_sources(hero_cuda PRIVATE src/distributed/cuda/nccl.cpp)
set_source_files_properties(src/distributed/cuda/nccl.cpp PROPERTIES INCLUDE_DIRECTORIES "${hero_wheels}/nvidia/nccl/include")
