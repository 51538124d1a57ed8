/* Row operations compiled for AVX2. */
#if defined(__x86_64__)
#include "kernels/cpu/row_ops_body.h"
#else
typedef int ps_row_ops_avx2; /* nothing on this machine type */
#endif
