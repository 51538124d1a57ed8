/* The one entry to all CUDA kernels: from a registry id to its launcher. */
#include "kernels/cuda/launch.cuh"

namespace {

struct row {
    uint32_t id;
    const char *name;
    psc::launcher launch;
};
#define ROW(id_, name_, op_, wtype_, in_, out_, min_, max_, tol_, launcher_, ...)                            \
    {id_, name_, psc::launch_##launcher_},
const row table[] = {PS_CUDA_KERNELS(ROW)};

ps_status report(const row &r, cudaError_t e, ps_error *err) {
    if (e == cudaSuccess)
        return PS_OK;
    if (e == cudaErrorNotSupported)
        return ps_error_set(err, PS_E_UNSUPPORTED, r.name, "this kernel does not do these shapes");
    if (e == cudaErrorSharedObjectInitFailed)
        return ps_error_set(err, PS_E_UNAVAILABLE, r.name, "this kernel needs cuBLAS");
    const ps_status s =
        ps_error_set(err, PS_E_OS, r.name, "%s: %s", cudaGetErrorName(e), cudaGetErrorString(e));
    if (err)
        err->sys_code = (int)e;
    return s;
}

} // namespace

extern "C" ps_status ps_cuda_launch(uint32_t id, const ps_kargs *a, const ps_cuda_on *on, ps_error *err) {
    for (const row &r : table)
        if (r.id == id)
            return report(r, r.launch(a, on), err);
    return ps_error_set(err, PS_E_UNSUPPORTED, "cuda", "there is no kernel %u", id);
}

extern "C" ps_status ps_cuda_load_all(ps_error *err) {
    for (const row &r : table) {
        const ps_status s = report(r, r.launch(nullptr, nullptr), err);
        if (s != PS_OK)
            return s;
    }
    const row copy = {0, "copy", nullptr}, topk = {0, "topk", nullptr};
    const ps_status s = report(copy, psc::load_copy_rows(), err);
    return s != PS_OK ? s : report(topk, psc::load_topk(), err);
}
