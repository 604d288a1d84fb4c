// What the library says about itself, asked before anything else in it is used.

#ifndef HAMCMC_SOURCE
#define HAMCMC_SOURCE "unknown"
#endif

// Hash of the files that it was built from.
extern "C" const char* hamcmc_source() { return HAMCMC_SOURCE; }

// Whether this machine has the instructions that it was built for.
extern "C" int hamcmc_supported() {
#if defined(__x86_64__) && defined(__AVX2__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return 1;
#endif
}
