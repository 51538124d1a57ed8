/* Compiled into test_cupti where the toolkit's headers are: what profile/cupti.c says of CUPTI's records and codes is so. */
#include <cupti.h>
#include <stddef.h>

#if CUPTI_API_VERSION >= 130000 && CUPTI_API_VERSION < 130100
_Static_assert(offsetof(CUpti_ActivityKernel10, start) == 16 && offsetof(CUpti_ActivityKernel10, end) == 24,
               "kernels");
_Static_assert(offsetof(CUpti_ActivityMemcpy6, start) == 16 && offsetof(CUpti_ActivityMemcpy6, end) == 24,
               "copies");
_Static_assert(offsetof(CUpti_ActivityMemset4, start) == 16 && offsetof(CUpti_ActivityMemset4, end) == 24,
               "memsets");
#endif
_Static_assert(CUPTI_ACTIVITY_KIND_MEMCPY == 1 && CUPTI_ACTIVITY_KIND_MEMSET == 2 &&
                   CUPTI_ACTIVITY_KIND_KERNEL == 3 && CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL == 10,
               "kinds");
_Static_assert(CUPTI_ERROR_MAX_LIMIT_REACHED == 12 && CUPTI_ERROR_NOT_COMPATIBLE == 14 &&
                   CUPTI_ERROR_NOT_INITIALIZED == 15 && CUPTI_ERROR_NOT_SUPPORTED == 27 &&
                   CUPTI_ERROR_INSUFFICIENT_PRIVILEGES == 35 &&
                   CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED == 39 &&
                   CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES == 40,
               "codes");
_Static_assert(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED == 1, "flags");
