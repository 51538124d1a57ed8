/* What differs between a machine then and now, in words. */
#include <criterion/criterion.h>
#include <string.h>

#include "schemas/facts.h"

static const uint64_t gib = (uint64_t)1 << 30;

static ps_facts made(void) {
    ps_facts f = {.cpu_model = "CPU A",
                  .n_allowed = 8,
                  .memory_bytes = 32 * gib,
                  .gpu_name = "GPU B",
                  .gpu_driver = "570.1",
                  .vram_bytes = 12 * gib};
    ps_facts_gpu_hash("GPU-0000", f.gpu_hash);
    return f;
}

static void says(const ps_facts *then, const ps_facts *now, const char *want) {
    char out[256];
    const bool differ = ps_facts_differ(then, "the profile", now, out, sizeof out);
    cr_expect_str_eq(out, want);
    cr_expect_eq(differ, want[0] != '\0');
}

Test(facts, what_differs_is_named) {
    const ps_facts then = made();
    ps_facts now = made();
    says(&then, &now, "");
    strcpy(now.gpu_driver, "580.2");
    says(&then, &now, "driver 570.1 in the profile, 580.2 here");
    now.memory_bytes = 16 * gib;
    says(&then, &now,
         "32.0 GiB of memory in the profile, 16.0 here; driver 570.1 in the profile, 580.2 here");
    now = made();
    now.memory_bytes = 31 * gib; /* a kernel that keeps a little more for itself */
    says(&then, &now, "");
    now.vram_bytes = 8 * gib;
    says(&then, &now, "12.0 GiB of VRAM in the profile, 8.0 here");
    now = made();
    ps_facts_gpu_hash("GPU-0001", now.gpu_hash);
    says(&then, &now, "another GPU B than in the profile");
    strcpy(now.gpu_name, "GPU C");
    says(&then, &now, "GPU GPU B in the profile, GPU C here");
    now = made();
    strcpy(now.cpu_model, "CPU Z");
    now.n_allowed = 1;
    says(&then, &now, "CPU CPU A in the profile, CPU Z here; 8 threads in the profile, 1 here");
}

Test(facts, what_is_not_known_is_not_compared) {
    const ps_facts all = made(), none = {0};
    says(&all, &none, "");
    says(&none, &all, "");
    ps_facts now = made();
    ps_facts_gpu_hash("", now.gpu_hash);
    now.gpu_driver[0] = '\0';
    says(&all, &now, "");
}

Test(facts, a_full_text_is_cut) {
    const ps_facts then = made();
    ps_facts now = {.cpu_model = "CPU Z", .n_allowed = 1, .memory_bytes = 1, .gpu_name = "GPU C"};
    char out[8];
    memset(out, 'x', sizeof out);
    cr_expect(ps_facts_differ(&then, "the profile", &now, out, sizeof out));
    cr_expect_str_eq(out, "CPU CPU");
}
