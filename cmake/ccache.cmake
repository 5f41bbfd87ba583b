# Uses ccache if it is installed. ccache handles precompiled headers only with this sloppiness and with
# -fpch-preprocess.
find_program(HERO_CCACHE ccache)
if(HERO_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros
                                  "${HERO_CCACHE}")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()
