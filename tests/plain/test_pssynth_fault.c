/* Writing a synthetic model when memory runs out or the disk refuses: an error, nothing left behind, and a file
 * that was there before is still what it was. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "fault.h"
#include "tools/pssynth.h"

static char dir[] = "/tmp/ps-synth-fault-XXXXXX", path[64];

static const char *write_model(void *ctx, bool injected) {
    ps_error err = {0};
    uint64_t bytes;
    ps_status status = synth_write(path, ctx, 1, false, false, NULL, &bytes, &err);
    /* ps_fault_hit is asked now: removing and checking the file are not what is tested. */
    bool hit = ps_fault_hit();
    ps_fault_disarm();
    if (status == PS_OK)
        return injected && hit ? "written although a call had failed" : NULL;
    if (!injected)
        return "was not written";
    char *data;
    uint64_t size;
    if (ps_file_read(path, 1 << 20, &data, &size, NULL) != PS_OK)
        return "the old file is gone";
    bool same = size == 3 && memcmp(data, "old", 3) == 0;
    free(data);
    return same ? NULL : "the old file was changed";
}

static unsigned put_old(void) {
    ps_error err;
    return ps_file_write_atomic(path, "old", 3, &err) == PS_OK ? 0 : 1;
}

int main(void) {
    if (mkdtemp(dir) == NULL)
        return 1;
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    synth_shape shape = *synth_preset("tiny-llama");
    shape.n_layers = 1;
    shape.n_vocab = 512;
    unsigned wrong = 0;
    /* As ps_fault_sweep does, but every run begins with the old file. */
    uint64_t bytes;
    ps_error err;
    wrong += put_old();
    ps_fault_arm(0, false);
    wrong += synth_write(path, &shape, 1, false, false, NULL, &bytes, &err) != PS_OK;
    uint64_t n_calls = ps_fault_disarm();
    for (uint64_t n = 1; n <= n_calls; n++) {
        wrong += put_old();
        ps_fault_held before = ps_fault_now();
        ps_fault_arm(n, false);
        const char *complaint = write_model(&shape, true);
        ps_fault_disarm();
        ps_fault_held after = ps_fault_now();
        if (complaint != NULL || after.blocks != before.blocks || after.descriptors != before.descriptors) {
            fprintf(stderr, "FAIL: call %llu: %s, %lld blocks and %lld descriptors left\n",
                    (unsigned long long)n, complaint != NULL ? complaint : "leak",
                    (long long)(after.blocks - before.blocks),
                    (long long)(after.descriptors - before.descriptors));
            wrong++;
        }
    }
    printf("each of %llu calls made to fail, %u complaints\n", (unsigned long long)n_calls, wrong);
    unlink(path);
    /* A temporary file that was left would keep the folder from going. */
    if (rmdir(dir) != 0) {
        fprintf(stderr, "FAIL: something is left in %s\n", dir);
        wrong++;
    }
    return wrong == 0 ? 0 : 1;
}
