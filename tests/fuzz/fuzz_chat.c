/* Any bytes as a chat template: refused or rendered, for the conversations that formats differ on. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "model/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char thought[] = "<think>\na</think>\n\n b ";
    const ps_chat_message m[4] = {{"system", {" s ", 3}},
                                  {"user", {"\xe3\x80\x80u", 4}},
                                  {"assistant", {thought, sizeof thought - 1}},
                                  {"user", {"", 0}}};
    ps_chat *chat;
    ps_error err;
    if (ps_chat_open_template((ps_str){(const char *)data, size}, &chat, &err) != PS_OK)
        return 0;
    for (unsigned first = 0; first < 3; first++)
        for (unsigned n = 1; n <= 4 - first; n++) {
            ps_chat_options o = {.add_generation_prompt = n % 2 == 0};
            ps_chat_text text;
            if (ps_chat_render(chat, m + first, n, &o, &text, &err) != PS_OK)
                continue;
            for (uint64_t i = 1; i < text.n_segments; i++)
                if (text.segments[i].kind == PS_CHAT_TEXT && text.segments[i - 1].kind == PS_CHAT_TEXT)
                    abort();
            ps_chat_text_free(&text);
        }
    ps_chat_close(chat);
    return 0;
}
