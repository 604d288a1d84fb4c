// What the library says about itself, asked before anything else in it is used.

#include "xla/ffi/api/c_api.h"

// Both hashes are given by build.py: of the files it was built from, and of all that went into the build.
extern "C" const char* hamcmc_source() { return HAMCMC_SOURCE; }
extern "C" const char* hamcmc_built() { return HAMCMC_BUILT; }

// XLA's interface that it was built for.
extern "C" int hamcmc_ffi_major() { return XLA_FFI_API_MAJOR; }
extern "C" int hamcmc_ffi_minor() { return XLA_FFI_API_MINOR; }

// Whether this machine has the instructions that it was built for.
extern "C" int hamcmc_supported() {
#if defined(__x86_64__) && defined(__AVX2__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return 1;
#endif
}
