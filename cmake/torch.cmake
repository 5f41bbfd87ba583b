# hero::torch: imported target for the headers and libraries of the torch wheel. find_package(Torch) would require a
# CUDA toolkit, which the CPU libraries do not need. The wheel includes its own libgomp.so.1; linking it instead of the
# compiler's keeps one OpenMP runtime per process, whose thread pool LibTorch and our loops share.
set(HERO_TORCH_VERSION 2.11.0)
# Python interpreter: that of `pip install`, else the project's venv, else the first in PATH.
if(SKBUILD)
  set(hero_python "${Python_EXECUTABLE}")
else()
  set(hero_python "${PROJECT_SOURCE_DIR}/.venv/bin/python")
  if(NOT EXISTS "${hero_python}")
    find_program(hero_python_found python3)
    set(hero_python "${hero_python_found}")
  endif()
endif()
set(HERO_PYTHON "${hero_python}" CACHE FILEPATH "Python whose torch wheel is used")
set(HERO_TORCH_DIR "" CACHE PATH "folder of the torch wheel; empty: ask HERO_PYTHON")

if(NOT HERO_TORCH_DIR)
  execute_process(
    COMMAND "${HERO_PYTHON}" -c
            "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "HERO_PYTHON: no torch wheel found through ${HERO_PYTHON}; run scripts/install.sh or pip install torch==${HERO_TORCH_VERSION}")
  endif()
  set(HERO_TORCH_DIR "${torch_dir}" CACHE PATH "folder of the torch wheel; empty: ask HERO_PYTHON" FORCE)
endif()

file(STRINGS "${HERO_TORCH_DIR}/version.py" torch_version REGEX "^__version__")
if(NOT torch_version MATCHES "'${HERO_TORCH_VERSION}[+']")
  message(FATAL_ERROR "${HERO_TORCH_DIR}: expected torch ${HERO_TORCH_VERSION}, found ${torch_version}")
endif()

function(hero_import_torch_library name)
  add_library(hero::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(hero::${name} PROPERTIES IMPORTED_LOCATION "${HERO_TORCH_DIR}/lib/lib${name}.so")
endfunction()
hero_import_torch_library(c10)
hero_import_torch_library(torch_cpu)

add_library(hero::torch INTERFACE IMPORTED GLOBAL)
target_include_directories(
  hero::torch SYSTEM INTERFACE "${HERO_TORCH_DIR}/include" "${HERO_TORCH_DIR}/include/torch/csrc/api/include")
target_compile_definitions(hero::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
target_link_libraries(hero::torch INTERFACE hero::torch_cpu hero::c10)

set(OpenMP_gomp_LIBRARY "${HERO_TORCH_DIR}/lib/libgomp.so.1" CACHE FILEPATH "OpenMP runtime")
find_package(OpenMP REQUIRED COMPONENTS CXX)
