/* Recognising and rendering chat templates when memory runs out: an error, and nothing left behind. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "fault.h"
#include "model/chat.h"

static const char *open_and_render(void *ctx, bool injected) {
    const ps_str *text = ctx;
    const ps_chat_message m[3] = {
        {"user", {"Hello", 5}}, {"assistant", {" Hi ", 4}}, {"user", {"And now something longer", 24}}};
    const ps_chat_options o = {.add_generation_prompt = true};
    ps_chat *chat = NULL;
    ps_chat_text out = {.segments = NULL};
    ps_error err = {.status = PS_OK};
    ps_status st = ps_chat_open_template(*text, &chat, &err);
    if (st == PS_OK) {
        st = ps_chat_render(chat, m, 3, &o, &out, &err);
        ps_chat_text_free(&out);
        ps_chat_close(chat);
    } else if (chat != NULL)
        return "an object on failure";
    if (st == PS_OK)
        return injected && ps_fault_hit() ? "went well although a call had failed" : NULL;
    if (!injected)
        return "did not go well";
    return st == PS_E_NOMEM && err.status == st && err.message[0] != '\0' ? NULL : ps_status_name(st);
}

int main(void) {
    static const char *const files[] = {"qwen3", "llama31", "gemma3", "mistral_v3"};
    unsigned wrong = 0;
    for (unsigned i = 0; i < 4; i++) {
        char path[128], *data;
        uint64_t size, n_calls;
        ps_error err;
        (void)snprintf(path, sizeof path, "tests/golden/chat/%s.jinja", files[i]);
        if (ps_file_read(path, 1 << 20, &data, &size, &err) != PS_OK) {
            fprintf(stderr, "FAIL: %s: %s\n", path, err.message);
            return 1;
        }
        ps_str text = {data, size};
        wrong += ps_fault_sweep(files[i], open_and_render, &text, &n_calls);
        wrong += n_calls < 4;
        free(data);
    }
    return wrong != 0;
}
