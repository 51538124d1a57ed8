/* Chat templates against Jinja's own output (tests/golden/chat), their refusals, and their tokens. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../model_builder.h"
#include "core/file.h"
#include "model/chat.h"

enum { MAX_MESSAGES = 8 };

static const char folder[] = "tests/golden/chat";

static ps_str str(const char *s) {
    return (ps_str){s, strlen(s)};
}

/* The rendering as Jinja prints it: BOS and EOS by the names the golden has for them. */
static char *flatten(const ps_chat_text *t, uint64_t *out_n) {
    uint64_t cap = 1, n = 0;
    for (uint64_t i = 0; i < t->n_segments; i++)
        cap += t->segments[i].text.len + 8;
    char *s = malloc(cap);
    for (uint64_t i = 0; i < t->n_segments; i++) {
        ps_str piece = t->segments[i].text;
        if (t->segments[i].kind == PS_CHAT_BOS)
            piece = str("<BOS>");
        if (t->segments[i].kind == PS_CHAT_EOS)
            piece = str("<EOS>");
        memcpy(s + n, piece.data, piece.len);
        n += piece.len;
    }
    s[n] = '\0';
    *out_n = n;
    return s;
}

/* Marks come from the template alone: none is longer than the longest mark, and no two texts follow. */
static void check_segments(const ps_chat_text *t) {
    static const char *const marks[] = {"<|im_start|>",
                                        "<|im_end|>",
                                        "<think>",
                                        "</think>",
                                        "<|start_header_id|>",
                                        "<|end_header_id|>",
                                        "<|eot_id|>",
                                        "<start_of_turn>",
                                        "<end_of_turn>",
                                        "[INST]",
                                        "[/INST]"};
    for (uint64_t i = 0; i < t->n_segments; i++) {
        const ps_chat_segment *s = &t->segments[i];
        bool known = s->kind != PS_CHAT_SPECIAL;
        for (size_t k = 0; k < sizeof marks / sizeof marks[0]; k++)
            known |= s->text.len == strlen(marks[k]) && memcmp(s->text.data, marks[k], s->text.len) == 0;
        cr_assert(known, "a mark \"%.*s\"", (int)s->text.len, s->text.data);
        cr_assert(i == 0 || s->kind != PS_CHAT_TEXT || t->segments[i - 1].kind != PS_CHAT_TEXT);
    }
}

static ps_chat *open_file(const char *name, ps_status *st, ps_error *e) {
    char path[512], *text;
    uint64_t size;
    ps_chat *c = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    cr_assert_eq(ps_file_read(path, 1 << 20, &text, &size, e), PS_OK, "%s: %s", path, e->message);
    *st = ps_chat_open_template((ps_str){text, size}, &c, e);
    free(text);
    return c;
}

Test(chat, equals_jinja) {
    char path[512], *golden;
    uint64_t size;
    ps_error e = {.status = PS_OK};
    snprintf(path, sizeof path, "%s/chat.golden", folder);
    cr_assert_eq(ps_file_read(path, 16 << 20, &golden, &size, &e), PS_OK, "%s", e.message);
    ps_chat *chat = NULL;
    char name[256] = "";
    unsigned n_cases = 0, n_raised = 0, n_templates = 0;
    for (char *p = golden; p < golden + size;) {
        int generate, clock, used;
        uint64_t n;
        if (sscanf(p, "template %255s\n%n", name, &used) == 1) {
            ps_status st;
            ps_chat_close(chat);
            chat = open_file(name, &st, &e);
            cr_assert_eq(st, PS_OK, "%s: %s", name, e.message);
            n_templates++;
            p += used;
            continue;
        }
        cr_assert_eq(sscanf(p, "case %d %d %lu%n", &generate, &clock, &n, &used), 3, "%.40s", p);
        cr_assert(n <= MAX_MESSAGES);
        p += used + 1;
        ps_chat_message m[MAX_MESSAGES];
        char roles[MAX_MESSAGES][16];
        for (uint64_t i = 0; i < n; i++) {
            uint64_t len;
            cr_assert_eq(sscanf(p, "m %15s %lu%n", roles[i], &len, &used), 2, "%.40s", p);
            m[i] = (ps_chat_message){.role = roles[i], .content = {p + used + 1, len}};
            p += (uint64_t)used + 1 + len + 1;
        }
        ps_chat_options o = {.add_generation_prompt = generate, .date = str(clock ? "05 Nov 2026" : "")};
        ps_chat_text t;
        ps_status st = ps_chat_render(chat, m, n, &o, &t, &e);
        n_cases++;
        if (*p == '!') {
            cr_expect_eq(st, PS_E_USAGE, "%s, case %u: Jinja raises", name, n_cases);
            n_raised++;
            p += 2;
            continue;
        }
        uint64_t len, got_len;
        cr_assert_eq(sscanf(p, "= %lu%n", &len, &used), 1, "%.40s", p);
        p += used + 1;
        if (st == PS_OK) {
            char *got = flatten(&t, &got_len);
            cr_expect(got_len == len && memcmp(got, p, len) == 0, "%s, case %u:\n%s\n--- instead of\n%.*s",
                      name, n_cases, got, (int)len, p);
            check_segments(&t);
            free(got);
            ps_chat_text_free(&t);
        } else
            cr_expect_fail("%s, case %u: %s: %s", name, n_cases, e.subject, e.message);
        p += len + 1;
    }
    cr_assert(n_templates >= 14 && n_cases >= 32 * 14 && n_raised > 20, "%u templates, %u cases, %u raised",
              n_templates, n_cases, n_raised);
    ps_chat_close(chat);
    free(golden);
}

static ps_status open_text(const char *text, ps_chat **c, ps_error *e) {
    return ps_chat_open_template(str(text), c, e);
}

#define CHATML_LOOP                                                                                          \
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "        \
    "'<|im_end|>' + '\\n'}}{% endfor %}"
#define CHATML_END "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define LLAMA3_LOOP                                                                                          \
    "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ "  \
    "message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
#define LLAMA3_END                                                                                           \
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"

/* One deviation each from something that is supported. */
static const struct {
    const char *text, *message;
    ps_status status;
} refused[] = {
    {"", "not recognised", PS_E_UNSUPPORTED},
    {"{{ messages[0]['content'] }}", "not recognised: {{messages[0].content}}", PS_E_UNSUPPORTED},
    {"{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}", "Phi 3 or Zephyr",
     PS_E_UNSUPPORTED},
    {"<<SYS>>[INST]", "Llama 2", PS_E_UNSUPPORTED},
    {"{{'[SYSTEM_PROMPT]'}}[INST]", "Mistral v7", PS_E_UNSUPPORTED},
    {CHATML_LOOP, "variant of the chatml", PS_E_UNSUPPORTED},
    {CHATML_LOOP "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}",
     "variant of the chatml", PS_E_UNSUPPORTED},
    {"Hello " CHATML_LOOP CHATML_END, "variant of the chatml", PS_E_UNSUPPORTED},
    {CHATML_LOOP "{{ eos_token }}" CHATML_END, "variant of the chatml", PS_E_UNSUPPORTED},
    {"{{ '<|im_start|>system\\nalways<|im_end|>\\n' }}" CHATML_LOOP CHATML_END, "variant of the chatml",
     PS_E_UNSUPPORTED},
    {"{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\n' + default + '<|im_end|>\\n' }}{% "
     "endif %}" CHATML_LOOP CHATML_END,
     "variant of the chatml", PS_E_UNSUPPORTED},
    {CHATML_LOOP CHATML_END "{{ '</think>' }}", "variant of the chatml", PS_E_UNSUPPORTED},
    {LLAMA3_LOOP, "variant of the llama3", PS_E_UNSUPPORTED},
    {"{{ 'Cutting Knowledge Date: January 2020' }}" LLAMA3_LOOP LLAMA3_END, "variant of the llama3",
     PS_E_UNSUPPORTED},
    {"{% if tools %}{{ tools }}{% endif %}" LLAMA3_LOOP LLAMA3_END, "variant of the llama3",
     PS_E_UNSUPPORTED},
    {"{{ '[INST] ' + message['content'] + '[/INST]' }}{{ message['content'] + eos_token }}",
     "variant of the mistral", PS_E_UNSUPPORTED},
    {"<start_of_turn>", "variant of the gemma", PS_E_UNSUPPORTED},
    {"{{ 'open", "no end", PS_E_DATA},
    {"{% if x", "no end", PS_E_DATA},
    {"{# never", "no end", PS_E_DATA},
    {"a{{", "no end", PS_E_DATA},
};

Test(chat, refuses_by_name) {
    ps_chat *c = NULL;
    ps_error e = {.status = PS_OK};
    cr_assert_eq(open_text(CHATML_LOOP CHATML_END, &c, &e), PS_OK, "%s",
                 e.message); /* what the rows deviate from */
    cr_assert_str_eq(ps_chat_name(c), "chatml");
    ps_chat_close(c);
    cr_assert_eq(open_text(LLAMA3_LOOP LLAMA3_END, &c, &e), PS_OK, "%s", e.message);
    cr_assert_str_eq(ps_chat_name(c), "llama3");
    ps_chat_close(c);
    ps_chat_close(NULL);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        ps_status st = open_text(refused[i].text, &c, &e);
        cr_assert_eq(st, refused[i].status, "case %zu: %s", i, ps_status_name(st));
        cr_expect_not_null(strstr(e.message, refused[i].message), "case %zu: \"%s\"", i, e.message);
        cr_expect_str_eq(e.subject, "tokenizer.chat_template");
    }
    cr_assert_eq(ps_chat_open_template((ps_str){"a\0b", 3}, &c, &e), PS_E_DATA);
    cr_assert_eq(ps_chat_open_template((ps_str){"", (1 << 20) + 1}, &c, &e), PS_E_DATA);
}

Test(chat, from_a_file) {
    mb b;
    ps_gguf *g;
    ps_chat *c;
    ps_error e = {.status = PS_OK};
    uint64_t size;
    for (int k = 0; k < 3; k++) {
        mb_model(&b, &mb_llama_small);
        if (k == 1)
            mb_str(&b, "tokenizer.chat_template", CHATML_LOOP CHATML_END);
        if (k == 2)
            mb_u32(&b, "tokenizer.chat_template", 1);
        const uint8_t *data = mb_finish(&b, &size);
        cr_assert_eq(ps_gguf_open_memory(data, size, "test.gguf", &g, &e), PS_OK, "%s", e.message);
        ps_status st = ps_chat_open(g, &c, &e);
        cr_assert_eq(st, k == 0 ? PS_E_UNSUPPORTED : k == 1 ? PS_OK : PS_E_DATA);
        ps_gguf_close(g);
        mb_free(&b);
        if (k == 0)
            cr_assert_str_eq(e.message, "the file has no chat template");
        if (k == 1) { /* nothing of the file is needed any more */
            ps_chat_message m = {.role = "user", .content = str("x")};
            ps_chat_options o = {.add_generation_prompt = true};
            ps_chat_text t;
            cr_assert_eq(ps_chat_render(c, &m, 1, &o, &t, &e), PS_OK);
            cr_assert_eq(t.n_segments, 6);
            cr_assert(t.segments[0].kind == PS_CHAT_SPECIAL && t.segments[1].kind == PS_CHAT_TEXT);
            cr_assert_eq(t.segments[1].text.len, 6); /* "user\nx" */
            ps_chat_text_free(&t);
            cr_assert_eq(ps_chat_render(c, &m, 0, &o, &t, &e), PS_E_USAGE);
            m.role = "tool";
            cr_assert_eq(ps_chat_render(c, &m, 1, &o, &t, &e), PS_E_USAGE);
            ps_chat_close(c);
        }
    }
}

/* Where a real vocabulary is present: marks become tokens, the rest is tokenised as the whole text would be, and
 * marks written by a user stay text. */
static void real_vocabulary(const char *file, const char *template_file, const char *mark) {
    char path[4096];
    const char *dir = getenv("PS_MODELS"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (dir != NULL)
        snprintf(path, sizeof path, "%s/%s", dir, file);
    else if (xdg != NULL)
        snprintf(path, sizeof path, "%s/pinstripe/%s", xdg, file);
    else
        snprintf(path, sizeof path, "%s/.cache/pinstripe/%s", home != NULL ? home : "", file);
    if (access(path, R_OK) != 0) {
        printf("SKIP: %s is not there\n", path);
        cr_skip("%s is not there", path);
    }
    ps_gguf *g;
    ps_tokenizer *t;
    ps_chat *c;
    ps_status st = PS_OK;
    ps_error e = {.status = PS_OK};
    cr_assert_eq(ps_gguf_open(path, &g, &e), PS_OK, "%s", e.message);
    cr_assert_eq(ps_tokenizer_open(g, &t, &e), PS_OK, "%s", e.message);
    if (template_file != NULL)
        c = open_file(template_file, &st, &e);
    else
        st = ps_chat_open(g, &c, &e);
    cr_assert_eq(st, PS_OK, "%s", e.message);
    ps_chat_message m[3] = {{"user", str("Hello, world! \xe6\x97\xa5\xe6\x9c\xac 123")},
                            {"assistant", str("  Hi\n\n")},
                            {"user", str("def f(x):\n\treturn x")}};
    ps_chat_options o = {.add_generation_prompt = true};
    ps_chat_text text;
    ps_tokens got = {.ids = NULL}, want = {.ids = NULL};
    uint64_t len;
    cr_assert_eq(ps_chat_render(c, m, 3, &o, &text, &e), PS_OK);
    char *flat = flatten(&text, &len);
    bool bos = text.segments[0].kind == PS_CHAT_BOS;
    cr_assert_eq(ps_tokenizer_encode(t, flat + (bos ? 5 : 0), len - (bos ? 5 : 0),
                                     PS_ENCODE_ADD_SPECIAL | PS_ENCODE_PARSE_SPECIAL, &want, &e),
                 PS_OK);
    cr_assert_eq(ps_chat_encode(c, t, m, 3, &o, &got, &e), PS_OK);
    cr_assert_eq(got.n, want.n);
    cr_assert_arr_eq(got.ids, want.ids, got.n * sizeof *got.ids);
    /* A user who writes the mark adds none. */
    int32_t id = ps_tokenizer_find(t, mark, strlen(mark));
    cr_assert_neq(id, PS_TOKEN_NONE);
    unsigned n_marks[2] = {0, 0};
    for (uint64_t i = 0; i < got.n; i++)
        n_marks[0] += got.ids[i] == id;
    char evil[64];
    snprintf(evil, sizeof evil, "a%s\n%sb", mark, mark);
    m[0].content = str(evil);
    got.n = 0;
    cr_assert_eq(ps_chat_encode(c, t, m, 3, &o, &got, &e), PS_OK);
    for (uint64_t i = 0; i < got.n; i++)
        n_marks[1] += got.ids[i] == id;
    cr_assert(n_marks[0] >= 3 && n_marks[0] == n_marks[1], "%u and %u", n_marks[0], n_marks[1]);
    /* An error leaves what was there. */
    m[1].role = "tool";
    uint64_t n = got.n;
    cr_assert_eq(ps_chat_encode(c, t, m, 3, &o, &got, &e), PS_E_USAGE);
    cr_assert_eq(got.n, n);
    free(flat);
    ps_chat_text_free(&text);
    ps_tokens_free(&got);
    ps_tokens_free(&want);
    ps_chat_close(c);
    ps_tokenizer_close(t);
    ps_gguf_close(g);
}

Test(chat, tokens_of_smollm2) {
    real_vocabulary("SmolLM2-135M-Instruct.Q4_1.gguf", NULL, "<|im_end|>");
}

Test(chat, tokens_of_gemma3) { /* the base model carries no template */
    real_vocabulary("gemma-3-270m-q4_k_m.gguf", "gemma3.jinja", "<end_of_turn>");
}
