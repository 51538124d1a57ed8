/* Chat templates: opening, rendering into segments, encoding. */
#include "model/chat.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "model/chat_internal.h"

static const char subject[] = "tokenizer.chat_template";

/* Marks of formats that are known by name and not supported, most telling first. */
static const struct {
    const char *mark, *name;
} unsupported[] = {
    {"<|im_sep|>", "Phi 4"},
    {"[SYSTEM_PROMPT]", "Mistral v7"},
    {"<<SYS>>", "Llama 2"},
    {"<|im_middle|>", "Kimi"},
    {"<\xef\xbd\x9cUser\xef\xbd\x9c>", "DeepSeek"},
    {"<|START_OF_TURN_TOKEN|>", "Command R"},
    {"<|start_of_role|>", "Granite"},
    {"<|header_start|>", "Llama 4"},
    {"<|channel|>", "gpt-oss"},
    {"[gMASK]", "GLM"},
    {"<|user|>", "Phi 3 or Zephyr"},
    {"GPT4 Correct", "OpenChat"},
    {"### Instruction", "Alpaca"},
    {"USER: ", "Vicuna"},
};

bool ps_chat_has(const ps_chat_buf *canonical, const char *snippet) {
    return strstr(canonical->data, snippet) != NULL;
}

/* Length of the white-space character (Python's str.isspace) at p, 0 if it is none. */
static uint64_t space_at(const char *s, uint64_t n) {
    const uint8_t *p = (const uint8_t *)s;
    if (n >= 1 && ((p[0] >= 0x09 && p[0] <= 0x0d) || (p[0] >= 0x1c && p[0] <= 0x20)))
        return 1;
    if (n >= 2 && p[0] == 0xc2 && (p[1] == 0x85 || p[1] == 0xa0)) /* U+0085, U+00A0 */
        return 2;
    if (n < 3)
        return 0;
    bool e1 = p[0] == 0xe1 && p[1] == 0x9a && p[2] == 0x80; /* U+1680 */
    bool e280 =
        p[0] == 0xe2 && p[1] == 0x80 && /* U+2000 to U+200A, */
        ((p[2] >= 0x80 && p[2] <= 0x8a) || p[2] == 0xa8 || p[2] == 0xa9 || p[2] == 0xaf); /* 2028 2029 202F */
    bool e281 = p[0] == 0xe2 && p[1] == 0x81 && p[2] == 0x9f;                             /* U+205F */
    bool e3 = p[0] == 0xe3 && p[1] == 0x80 && p[2] == 0x80;                               /* U+3000 */
    return e1 || e280 || e281 || e3 ? 3 : 0;
}

ps_str ps_chat_strip(ps_str s) {
    for (uint64_t k; (k = space_at(s.data, s.len)) != 0;) {
        s.data += k;
        s.len -= k;
    }
    for (bool more = true; more;) {
        more = false;
        for (uint64_t k = 1; k <= 3 && k <= s.len; k++)
            if (space_at(s.data + s.len - k, k) == k) {
                s.len -= k;
                more = true;
                break;
            }
    }
    return s;
}

static ps_status refuse(const ps_chat_buf *t, const char *variant_of, ps_error *err) {
    for (unsigned i = 0; i < sizeof unsupported / sizeof unsupported[0]; i++)
        if (ps_chat_has(t, unsupported[i].mark))
            return ps_error_set(err, PS_E_UNSUPPORTED, subject, "the chat format of %s is not supported",
                                unsupported[i].name);
    if (variant_of != NULL)
        return ps_error_set(err, PS_E_UNSUPPORTED, subject,
                            "this variant of the %s chat format is not supported", variant_of);
    return ps_error_set(err, PS_E_UNSUPPORTED, subject, "chat format not recognised: %.60s", t->data);
}

ps_status ps_chat_open_template(ps_str text, ps_chat **out, ps_error *err) {
    ps_chat_buf canonical = {.data = NULL};
    ps_chat *chat = NULL;
    ps_status st;
    if (text.len > PS_CHAT_TEMPLATE_MAX)
        return ps_error_set(err, PS_E_DATA, subject, "%" PRIu64 " bytes are too long", text.len);
    if (memchr(text.len != 0 ? text.data : "", '\0', (size_t)text.len) != NULL)
        return ps_error_set(err, PS_E_DATA, subject, "holds a NUL");
    st = ps_chat_canonical(text, &canonical, err);
    if (st != PS_OK)
        return st;
    chat = malloc(sizeof *chat);
    if (chat == NULL) {
        st = ps_error_set(err, PS_E_NOMEM, subject, "out of memory");
        goto done;
    }
    uint32_t n;
    const char *variant_of = NULL;
    const ps_chat_format *formats = ps_chat_formats(&n), *found = NULL;
    for (uint32_t i = 0; i < n && found == NULL; i++) {
        if (!ps_chat_has(&canonical, formats[i].mark))
            continue;
        *chat = (ps_chat){.format = &formats[i]};
        if (formats[i].recognise(&canonical, chat))
            found = &formats[i];
        else if (variant_of == NULL)
            variant_of = formats[i].name;
    }
    if (found == NULL) {
        st = refuse(&canonical, variant_of, err);
        goto done;
    }
    chat->text = canonical.data;
    canonical.data = NULL;
    *out = chat;
    chat = NULL;
done:
    free(chat);
    free(canonical.data);
    return st;
}

ps_status ps_chat_open(const ps_gguf *gguf, ps_chat **out, ps_error *err) {
    ps_str text;
    bool found;
    ps_status st = ps_gguf_get_str(gguf, subject, &text, &found, err);
    if (st == PS_OK && !found)
        return ps_error_set(err, PS_E_UNSUPPORTED, subject, "the file has no chat template");
    return st == PS_OK ? ps_chat_open_template(text, out, err) : st;
}

void ps_chat_close(ps_chat *chat) {
    if (chat != NULL)
        free(chat->text);
    free(chat);
}

const char *ps_chat_name(const ps_chat *chat) {
    return chat->format->name;
}

void ps_chat_put(ps_chat_out *out, ps_chat_kind kind, ps_str s) {
    bool mark = kind == PS_CHAT_BOS || kind == PS_CHAT_EOS;
    if (s.len == 0 && !mark)
        return;
    ps_chat_segment seg = {.kind = kind, .text = {NULL, s.len}};
    ps_chat_segment last;
    uint64_t n = out->segments.n / sizeof seg;
    if (n != 0 && kind == PS_CHAT_TEXT && !out->segments.failed) {
        char *at = out->segments.data + (n - 1) * sizeof seg;
        memcpy(&last, at, sizeof last);
        if (last.kind == PS_CHAT_TEXT) {
            last.text.len += s.len;
            memcpy(at, &last, sizeof last);
            ps_chat_buf_add(&out->bytes, s.data, s.len);
            return;
        }
    }
    ps_chat_buf_add(&out->segments, (const char *)&seg, sizeof seg);
    ps_chat_buf_add(&out->bytes, s.data, s.len);
}

void ps_chat_puts(ps_chat_out *out, ps_chat_kind kind, const char *s) {
    ps_chat_put(out, kind, (ps_str){s, strlen(s)});
}

ps_status ps_chat_render(const ps_chat *chat, const ps_chat_message *messages, uint64_t n,
                         const ps_chat_options *options, ps_chat_text *out, ps_error *err) {
    ps_chat_out o = {.bytes = {.data = NULL}};
    ps_status st = PS_OK;
    if (n == 0)
        return ps_error_set(err, PS_E_USAGE, "messages", "there are none");
    for (uint64_t i = 0; i < n; i++)
        if (strcmp(messages[i].role, "system") != 0 && strcmp(messages[i].role, "user") != 0 &&
            strcmp(messages[i].role, "assistant") != 0)
            return ps_error_set(err, PS_E_USAGE, "messages",
                                "role \"%.40s\" is not system, user or assistant", messages[i].role);
    if (chat->bos)
        ps_chat_put(&o, PS_CHAT_BOS, (ps_str){"", 0});
    st = chat->format->render(chat, messages, n, options, &o, err);
    if (st == PS_OK && (o.bytes.failed || o.segments.failed))
        st = ps_error_set(err, PS_E_NOMEM, subject, "out of memory");
    if (st != PS_OK) {
        free(o.bytes.data);
        free(o.segments.data);
        return st;
    }
    out->bytes = o.bytes.data;
    out->segments = (ps_chat_segment *)(void *)o.segments.data;
    out->n_segments = o.segments.n / sizeof(ps_chat_segment);
    const char *at = o.bytes.data;
    for (uint64_t i = 0; i < out->n_segments; i++) {
        out->segments[i].text.data = at;
        at += out->segments[i].text.len;
    }
    return PS_OK;
}

void ps_chat_text_free(ps_chat_text *text) {
    free(text->segments);
    free(text->bytes);
    *text = (ps_chat_text){.n_segments = 0};
}
