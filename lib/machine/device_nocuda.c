/* Builds without CUDA: there is no such device. */
#include "machine/device_driver.h"

ps_status ps_device_cuda_open(const ps_device_options *options, ps_device **out, ps_error *err) {
    (void)options;
    (void)out;
    return ps_error_set(err, PS_E_UNAVAILABLE, "GPU", "built without CUDA");
}
