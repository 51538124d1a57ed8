/* Takes VRAM from whoever else is on the card: vram_ballast MIB:SECONDS... holds so much for so long, one after the other, as
 * a browser or a game would. Prints the time of each change. Exit 77 without a GPU. */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    if (cudaFree(0) != cudaSuccess)
        return 77;
    void *held = NULL;
    for (int i = 1; i < argc; i++) {
        char *end;
        const unsigned long long mib = strtoull(argv[i], &end, 10);
        const double seconds = *end == ':' ? atof(end + 1) : 1;
        cudaFree(held);
        held = NULL;
        if (mib != 0 && cudaMalloc(&held, (size_t)mib << 20) != cudaSuccess) {
            fprintf(stderr, "vram_ballast: no %llu MiB\n", mib);
            return 1;
        }
        printf("%.3f holds %llu MiB\n", now(), mib);
        fflush(stdout);
        usleep((useconds_t)(seconds * 1e6));
    }
    cudaFree(held);
    return 0;
}
