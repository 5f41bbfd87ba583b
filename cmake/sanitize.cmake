# HERO_SANITIZE=address adds AddressSanitizer and UndefinedBehaviorSanitizer to all of our code, HERO_SANITIZE=thread
# ThreadSanitizer; scripts/sanitize.sh builds and runs both. LibTorch is not instrumented. Without `vptr`, which needs the
# type information of LibTorch's classes.
set(HERO_SANITIZE "" CACHE STRING "sanitizers: empty, address or thread")
set_property(CACHE HERO_SANITIZE PROPERTY STRINGS "" address thread)
if(HERO_SANITIZE STREQUAL "address")
  set(hero_sanitize_flags -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all)
elseif(HERO_SANITIZE STREQUAL "thread")
  set(hero_sanitize_flags -fsanitize=thread)
  # The resolvers of functions that are compiled for several instruction sets would run before the sanitizer starts.
  add_compile_definitions(HERO_SIMD_LEVEL=1)
elseif(HERO_SANITIZE)
  message(FATAL_ERROR "HERO_SANITIZE: found ${HERO_SANITIZE}, expected address, thread or nothing")
endif()
if(HERO_SANITIZE)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${hero_sanitize_flags};-fno-omit-frame-pointer;-g1;-O1>")
  add_link_options("${hero_sanitize_flags}")
endif()
