/* Attention compiled for AVX512. */
#if defined(__x86_64__)
#include "kernels/cpu/attn_body.h"
#else
typedef int ps_attn_avx512; /* nothing on this machine type */
#endif
