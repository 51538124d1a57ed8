/* Row operations compiled for AVX512. */
#if defined(__x86_64__)
#include "kernels/cpu/row_ops_body.h"
#else
typedef int ps_row_ops_avx512; /* nothing on this machine type */
#endif
