/* The table of chat formats: how each is recognised in a canonical template, and how it is rendered. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/chat_internal.h"

static bool is_role(const ps_chat_message *m, const char *role) {
    return strcmp(m->role, role) == 0;
}

static ps_status wrong_message(ps_error *err, uint64_t i, const char *what) {
    char subject[40];
    (void)snprintf(subject, sizeof subject, "message %" PRIu64, i + 1);
    return ps_error_set(err, PS_E_USAGE, subject, "%s", what);
}

static ps_str content_of(const ps_chat *c, const ps_chat_message *m) {
    return c->trim ? ps_chat_strip(m->content) : m->content;
}

/* Users and others in turn, the user first, in [first, n). only_assistant: the others are assistants. */
static ps_status check_turns(const ps_chat_message *m, uint64_t first, uint64_t n, bool only_assistant,
                             ps_error *err) {
    if (first == n)
        return ps_error_set(err, PS_E_USAGE, "messages", "there is no user message");
    for (uint64_t i = first; i < n; i++) {
        bool user = is_role(&m[i], "user");
        if (user != ((i - first) % 2 == 0) || (only_assistant && !user && !is_role(&m[i], "assistant")))
            return wrong_message(err, i, "this chat template wants user and assistant messages in turn");
    }
    return PS_OK;
}

/* True if every {{...}} of the template is one of `known` (a "*" at the end: any rest of a literal) or raises an
 * exception. Templates that know tools print more, in branches that messages without tools do not reach; there the
 * known expressions alone decide, and only formats whose templates are known to have such branches allow it. */
static bool only_outputs(const ps_chat_buf *t, bool tools_allowed, const char *const *known, size_t n_known) {
    if (ps_chat_has(t, "tool"))
        return tools_allowed;
    bool quoted = false;
    const char *begin = NULL;
    for (const char *p = t->data; *p != '\0'; p++) {
        if (quoted && *p == '\\' && p[1] != '\0')
            p++;
        else if (*p == '\'')
            quoted = !quoted;
        else if (!quoted && begin == NULL && p[0] == '{' && p[1] == '{')
            begin = p + 2;
        else if (!quoted && begin != NULL && p[0] == '}' && p[1] == '}') {
            ps_str e = {begin, (uint64_t)(p - begin)};
            bool ok = e.len > 16 && memcmp(e.data, "raise_exception(", 16) == 0;
            for (size_t i = 0; i < n_known && !ok; i++) {
                size_t len = strlen(known[i]);
                bool rest = len > 0 && known[i][len - 1] == '*';
                ok = rest ? e.len >= len && memcmp(e.data, known[i], len - 1) == 0 &&
                                memchr(e.data + len - 1, '\'', e.len - len + 1) == e.data + e.len - 1
                          : e.len == len && memcmp(e.data, known[i], len) == 0;
            }
            if (!ok)
                return false;
            begin = NULL;
        }
    }
    return true;
}
#define ONLY_OUTPUTS(t, tools, list) only_outputs(t, tools, list, sizeof(list) / sizeof(list)[0])

/* ---- ChatML ---- */

/* The system message for chats without one: a literal in one of the places that mean that. Another literal
 * system message is taken for what is said about tools, if the template knows tools; otherwise false. */
static bool find_default_system(const ps_chat_buf *t, ps_str *out) {
    static const char open[] = "'<|im_start|>system\n", close[] = "<|im_end|>\n'}}";
    static const char *const places[] = {
        "{%if loop.first and messages[0].role!='system'%}{{",
        "{%if messages[0].role!='system'%}{{",
        "messages[0].role=='system'%}{{'<|im_start|>system\n'+messages[0].content+'<|im_end|>\n'}}{%else%}{{",
    };
    for (const char *p = t->data; (p = strstr(p, open)) != NULL;) {
        size_t before = (size_t)(p - t->data);
        bool known = false;
        p += sizeof open - 1;
        if (*p == '\'')
            continue; /* somebody's content follows */
        for (unsigned i = 0; i < sizeof places / sizeof places[0]; i++) {
            size_t n = strlen(places[i]);
            known |= before >= n && memcmp(t->data + before - n, places[i], n) == 0;
        }
        const char *end = strstr(p, close), *quote = strchr(p, '\'');
        bool literal =
            end != NULL && quote == end + sizeof close - 4 && memchr(p, '\\', (size_t)(end - p)) == NULL;
        if (known && literal && out->len == 0)
            *out = (ps_str){p, (uint64_t)(end - p)};
        else if (known || !ps_chat_has(t, "{%if tools"))
            return false;
    }
    return true;
}

#define CHATML_HEAD "'<|im_start|>'+message.role+'\n'+"
static bool recognise_chatml(const ps_chat_buf *t, ps_chat *c) {
    /* A literal system message is looked at by find_default_system. */
    static const char *const outputs[] = {CHATML_HEAD "message.content+'<|im_end|>\n'",
                                          CHATML_HEAD "message.content|trim+'<|im_end|>\n'",
                                          "bos_token",
                                          "'<|im_start|>assistant\n'",
                                          "'<|im_start|>system\n'+messages[0].content+'<|im_end|>\n'",
                                          "'<|im_start|>system\n*"};
    bool plain = ps_chat_has(t, CHATML_HEAD "message.content+'<|im_end|>\n'");
    bool var = ps_chat_has(t, CHATML_HEAD "content+'<|im_end|>\n'") &&
               ps_chat_has(t, "{%set content=message.content%}");
    c->trim = ps_chat_has(t, CHATML_HEAD "message.content|trim+'<|im_end|>\n'");
    c->think = ps_chat_has(t, "</think>");
    c->bos = ps_chat_has(t, "{{bos_token");
    if (plain + var + c->trim != 1 || !ONLY_OUTPUTS(t, true, outputs) ||
        !ps_chat_has(t, "{%if add_generation_prompt%}{{'<|im_start|>assistant\n'}}"))
        return false;
    /* Qwen3; other ways to treat thoughts are not known here. */
    if (c->think && !ps_chat_has(t, "{%set content=message.content.split('</think>')[-1].lstrip('\n')%}") &&
        !ps_chat_has(t, "{%set content=content.split('</think>')[-1].lstrip('\n')%}") &&
        !ps_chat_has(t, "{%set content=(message.content.split('</think>')|last).lstrip('\n')%}"))
        return false;
    if (c->think &&
        !(ps_chat_has(t, "{%if loop.index0>ns.last_query_index%}{%if loop.last or(not loop.last and "
                         "reasoning_content)%}{{'<|im_start|>'+message.role+'\n<think>\n'+"
                         "reasoning_content.strip('\n')+'\n</think>\n\n'+content.lstrip('\n')}}") &&
          ps_chat_has(t, "{{'<|im_start|>'+message.role+'\n'+content}}")))
        return false;
    return find_default_system(t, &c->default_system);
}

static const char *find_str(ps_str s, const char *what, bool from_end) {
    size_t n = strlen(what);
    const char *hit = NULL;
    for (uint64_t i = 0; i + n <= s.len; i++)
        if (memcmp(s.data + i, what, n) == 0) {
            hit = s.data + i;
            if (!from_end)
                break;
        }
    return hit;
}

static ps_str strip_newlines(ps_str s, bool left, bool right) {
    while (left && s.len > 0 && s.data[0] == '\n')
        s.data++, s.len--;
    while (right && s.len > 0 && s.data[s.len - 1] == '\n')
        s.len--;
    return s;
}

static ps_str after(ps_str s, const char *p, size_t skip) {
    return (ps_str){p + skip, s.len - (uint64_t)(p - s.data) - skip};
}

/* Qwen3: what an answer says after its thoughts, and the thoughts. */
static void split_thoughts(ps_str s, ps_str *out_content, ps_str *out_thoughts) {
    static const char open[] = "<think>", close[] = "</think>";
    const char *first = find_str(s, close, false), *last = find_str(s, close, true);
    *out_content = s;
    *out_thoughts = (ps_str){"", 0};
    if (first == NULL)
        return;
    *out_content = strip_newlines(after(s, last, sizeof close - 1), true, false);
    ps_str head = strip_newlines((ps_str){s.data, (uint64_t)(first - s.data)}, false, true);
    const char *begin = find_str(head, open, true);
    if (begin != NULL)
        head = after(head, begin, sizeof open - 1);
    *out_thoughts = strip_newlines(head, true, true);
}

static bool starts_with(ps_str s, const char *p) {
    return s.len >= strlen(p) && memcmp(s.data, p, strlen(p)) == 0;
}

static bool ends_with(ps_str s, const char *p) {
    size_t n = strlen(p);
    return s.len >= n && memcmp(s.data + s.len - n, p, n) == 0;
}

/* Qwen3: the last user message that is no tool's response; the last message if there is none. */
static uint64_t last_query(const ps_chat_message *m, uint64_t n) {
    for (uint64_t i = n; i-- > 0;)
        if (is_role(&m[i], "user") &&
            !(starts_with(m[i].content, "<tool_response>") && ends_with(m[i].content, "</tool_response>")))
            return i;
    return n - 1;
}

static void chatml_head(ps_chat_out *out, const char *role) {
    ps_chat_puts(out, PS_CHAT_SPECIAL, "<|im_start|>");
    ps_chat_puts(out, PS_CHAT_TEXT, role);
    ps_chat_puts(out, PS_CHAT_TEXT, "\n");
}

static void chatml_message(ps_chat_out *out, const char *role, ps_str content) {
    chatml_head(out, role);
    ps_chat_put(out, PS_CHAT_TEXT, content);
    ps_chat_puts(out, PS_CHAT_SPECIAL, "<|im_end|>");
    ps_chat_puts(out, PS_CHAT_TEXT, "\n");
}

static ps_status render_chatml(const ps_chat *c, const ps_chat_message *m, uint64_t n,
                               const ps_chat_options *options, ps_chat_out *out, ps_error *err) {
    (void)err;
    uint64_t query = last_query(m, n);
    if (c->default_system.len != 0 && !is_role(&m[0], "system"))
        chatml_message(out, "system", c->default_system);
    for (uint64_t i = 0; i < n; i++) {
        ps_str content = content_of(c, &m[i]), thoughts;
        if (!c->think || !is_role(&m[i], "assistant")) {
            chatml_message(out, m[i].role, content);
            continue;
        }
        split_thoughts(content, &content, &thoughts);
        if (i <= query || (i + 1 != n && thoughts.len == 0)) {
            chatml_head(out, m[i].role);
        } else {
            chatml_head(out, m[i].role);
            ps_chat_puts(out, PS_CHAT_SPECIAL, "<think>");
            ps_chat_puts(out, PS_CHAT_TEXT, "\n");
            ps_chat_put(out, PS_CHAT_TEXT, thoughts);
            ps_chat_puts(out, PS_CHAT_TEXT, "\n");
            ps_chat_puts(out, PS_CHAT_SPECIAL, "</think>");
            ps_chat_puts(out, PS_CHAT_TEXT, "\n\n");
            content = strip_newlines(content, true, false);
        }
        ps_chat_put(out, PS_CHAT_TEXT, content);
        ps_chat_puts(out, PS_CHAT_SPECIAL, "<|im_end|>");
        ps_chat_puts(out, PS_CHAT_TEXT, "\n");
    }
    if (options->add_generation_prompt)
        chatml_head(out, "assistant");
    return PS_OK;
}

/* ---- Llama 3 ---- */

#define LLAMA3_MESSAGE "'<|start_header_id|>'+message.role+'<|end_header_id|>\n\n'+message.content"
#define LLAMA3_DATES "'Cutting Knowledge Date: December 2023\nToday Date: '+date_string+'\n\n'"

static bool recognise_llama3_any(const ps_chat_buf *t, ps_chat *c) {
    c->trim = ps_chat_has(t, LLAMA3_MESSAGE "|trim+'<|eot_id|>'");
    c->bos = ps_chat_has(t, "bos_token");
    return (c->trim || ps_chat_has(t, LLAMA3_MESSAGE "+'<|eot_id|>'")) &&
           ps_chat_has(t,
                       "{%if add_generation_prompt%}{{'<|start_header_id|>assistant<|end_header_id|>\n\n'}}");
}

static bool recognise_llama3(const ps_chat_buf *t, ps_chat *c) {
    static const char *const outputs[] = {"content", "bos_token", LLAMA3_MESSAGE "+'<|eot_id|>'",
                                          LLAMA3_MESSAGE "|trim+'<|eot_id|>'",
                                          "'<|start_header_id|>assistant<|end_header_id|>\n\n'"};
    return recognise_llama3_any(t, c) && ONLY_OUTPUTS(t, false, outputs) && !ps_chat_has(t, "Today Date") &&
           !ps_chat_has(t, "system_message");
}

static bool recognise_llama31(const ps_chat_buf *t, ps_chat *c) {
    static const char date[] = "set date_string='";
    const char *p = strstr(t->data, date);
    if (!recognise_llama3_any(t, c) || !c->trim || !ps_chat_has(t, LLAMA3_DATES) || p == NULL ||
        !ps_chat_has(t, "{%set system_message=messages[0].content|trim%}") ||
        !ps_chat_has(t, "{%set system_message=''%}") || !ps_chat_has(t, "{{system_message+'<|eot_id|>'}}") ||
        !ps_chat_has(t, "'<|start_header_id|>system<|end_header_id|>\n\n'}}"))
        return false;
    p += sizeof date - 1;
    const char *end = strchr(p, '\'');
    c->date = (ps_str){p, (uint64_t)(end != NULL ? end - p : 0)};
    c->clock = ps_chat_has(t, "{%set date_string=strftime_now('%d %b %Y')%}");
    return c->date.len != 0 && (c->clock || !ps_chat_has(t, "strftime_now"));
}

static void llama3_head(ps_chat_out *out, const char *role) {
    ps_chat_puts(out, PS_CHAT_SPECIAL, "<|start_header_id|>");
    ps_chat_puts(out, PS_CHAT_TEXT, role);
    ps_chat_puts(out, PS_CHAT_SPECIAL, "<|end_header_id|>");
    ps_chat_puts(out, PS_CHAT_TEXT, "\n\n");
}

static ps_status render_llama3(const ps_chat *c, const ps_chat_message *m, uint64_t n,
                               const ps_chat_options *options, ps_chat_out *out, ps_error *err) {
    (void)err;
    uint64_t first = 0;
    if (c->date.len != 0) { /* 3.1: a system message always, the caller's behind the dates */
        bool given = is_role(&m[0], "system");
        llama3_head(out, "system");
        ps_chat_puts(out, PS_CHAT_TEXT, "Cutting Knowledge Date: December 2023\nToday Date: ");
        ps_chat_put(out, PS_CHAT_TEXT, c->clock && options->date.len != 0 ? options->date : c->date);
        ps_chat_puts(out, PS_CHAT_TEXT, "\n\n");
        if (given)
            ps_chat_put(out, PS_CHAT_TEXT, ps_chat_strip(m[0].content));
        ps_chat_puts(out, PS_CHAT_SPECIAL, "<|eot_id|>");
        first = given;
    }
    for (uint64_t i = first; i < n; i++) {
        llama3_head(out, m[i].role);
        ps_chat_put(out, PS_CHAT_TEXT, content_of(c, &m[i]));
        ps_chat_puts(out, PS_CHAT_SPECIAL, "<|eot_id|>");
    }
    if (options->add_generation_prompt)
        llama3_head(out, "assistant");
    return PS_OK;
}

/* ---- Gemma ---- */

#define TURNS_MUST_ALTERNATE "{%if(message.role=='user')!=(loop.index0%2==0)%}{{raise_exception("

static bool recognise_gemma(const ps_chat_buf *t, ps_chat *c) {
    /* The last three are for images. */
    static const char *const outputs[] = {
        "bos_token",
        "'<start_of_turn>'+role+'\n'+message.content|trim+'<end_of_turn>\n'",
        "'<start_of_turn>'+role+'\n'+(first_user_prefix if loop.first else'')",
        "message.content|trim",
        "'<end_of_turn>\n'",
        "'<start_of_turn>model\n'",
        "'<start_of_image>'",
        "item.text|trim"};
    bool whole = ps_chat_has(t, "{{'<start_of_turn>'+role+'\n'+message.content|trim+'<end_of_turn>\n'}}");
    c->prefix = ps_chat_has(t, "{{'<start_of_turn>'+role+'\n'+(first_user_prefix if loop.first else'')}}"
                               "{%if message.content is string%}{{message.content|trim}}") &&
                ps_chat_has(t, "{%set first_user_prefix=messages[0].content+'\n\n'%}") &&
                ps_chat_has(t, "{{'<end_of_turn>\n'}}");
    c->trim = true;
    c->bos = ps_chat_has(t, "{{bos_token");
    return whole != c->prefix && ONLY_OUTPUTS(t, false, outputs) &&
           (c->prefix || ps_chat_has(t, "raise_exception('System role not supported')")) &&
           ps_chat_has(t, TURNS_MUST_ALTERNATE) && ps_chat_has(t, "{%set role='model'%}") &&
           ps_chat_has(t, "{%if add_generation_prompt%}{{'<start_of_turn>model\n'}}");
}

static void gemma_head(ps_chat_out *out, const char *role) {
    ps_chat_puts(out, PS_CHAT_SPECIAL, "<start_of_turn>");
    ps_chat_puts(out, PS_CHAT_TEXT, role);
    ps_chat_puts(out, PS_CHAT_TEXT, "\n");
}

static ps_status render_gemma(const ps_chat *c, const ps_chat_message *m, uint64_t n,
                              const ps_chat_options *options, ps_chat_out *out, ps_error *err) {
    uint64_t first = is_role(&m[0], "system");
    if (first != 0 && !c->prefix)
        return wrong_message(err, 0, "this chat template has no system messages");
    ps_status st = check_turns(m, first, n, false, err);
    for (uint64_t i = first; i < n && st == PS_OK; i++) {
        gemma_head(out, is_role(&m[i], "assistant") ? "model" : m[i].role);
        if (i == 1 && first == 1) {
            ps_chat_put(out, PS_CHAT_TEXT, m[0].content);
            ps_chat_puts(out, PS_CHAT_TEXT, "\n\n");
        }
        ps_chat_put(out, PS_CHAT_TEXT, content_of(c, &m[i]));
        ps_chat_puts(out, PS_CHAT_SPECIAL, "<end_of_turn>");
        ps_chat_puts(out, PS_CHAT_TEXT, "\n");
    }
    if (options->add_generation_prompt)
        gemma_head(out, "model");
    return st;
}

/* ---- Mistral ---- */

/* Spaces around the marks, and what follows an answer's EOS. */
static const char *const mistral_opens[] = {"[INST] ", " [INST] ", "[INST]"};
static const char *const mistral_closes[] = {" [/INST]", "[/INST]"};
static const struct {
    const char *text;
    const char *before, *after;
    bool trim;
} mistral_answers[] = {
    {"{{message.content+eos_token}}", "", "", false},
    {"{{message.content+eos_token+' '}}", "", " ", false},
    {"{{' '+message.content+eos_token}}", " ", "", false},
    {"{{message.content|trim+eos_token}}", "", "", true},
    {"{{' '+message.content|trim+eos_token}}", " ", "", true},
};

/* The outputs of the variant that has been recognised, in a template that knows no tools. */
static bool only_mistral_outputs(const ps_chat_buf *t, const ps_chat *c) {
    char user[64], system[96], answer[64];
    const char *const outputs[] = {"bos_token", user, system, answer};
    (void)snprintf(user, sizeof user, "'%s'+message.content+'%s'", c->open, c->close);
    (void)snprintf(system, sizeof system, "'%s'+system_message+'\n\n'+message.content+'%s'", c->open,
                   c->close);
    (void)snprintf(answer, sizeof answer, "%smessage.content%s+eos_token%s",
                   c->answer[0] != '\0' ? "' '+" : "", c->answer_trim ? "|trim" : "",
                   c->answer_end[0] != '\0' ? "+' '" : "");
    return ONLY_OUTPUTS(t, true, outputs);
}

static bool recognise_mistral(const ps_chat_buf *t, ps_chat *c) {
    char text[128];
    unsigned n_users = 0, n_answers = 0;
    for (unsigned i = 0; i < sizeof mistral_opens / sizeof mistral_opens[0]; i++)
        for (unsigned k = 0; k < sizeof mistral_closes / sizeof mistral_closes[0]; k++) {
            const char *open = mistral_opens[i], *close = mistral_closes[k];
            (void)snprintf(text, sizeof text, "{{'%s'+message.content+'%s'}}", open, close);
            if (!ps_chat_has(t, text))
                continue;
            n_users++;
            c->open = open;
            c->close = close;
            (void)snprintf(text, sizeof text,
                           " and system_message is defined%%}{{'%s'+system_message+'\n\n'+", open);
            c->system_any = ps_chat_has(t, text);
            c->system_last = ps_chat_has(t, "{%if loop.last and system_message is defined%}");
        }
    for (unsigned i = 0; i < sizeof mistral_answers / sizeof mistral_answers[0]; i++)
        if (ps_chat_has(t, mistral_answers[i].text)) {
            n_answers++;
            c->answer = mistral_answers[i].before;
            c->answer_end = mistral_answers[i].after;
            c->answer_trim = mistral_answers[i].trim;
        }
    c->bos = ps_chat_has(t, "{{bos_token}}");
    bool turns = ps_chat_has(t, "raise_exception('Conversation roles must alternate user/assistant") ||
                 ps_chat_has(t, "raise_exception('After the optional system message, conversation roles must "
                                "alternate user/assistant");
    bool first = ps_chat_has(t, "{%if loop.first and system_message is defined%}");
    return n_users == 1 && n_answers == 1 && turns && only_mistral_outputs(t, c) &&
           !ps_chat_has(t, "<<SYS>>") && !ps_chat_has(t, "[SYSTEM_PROMPT]") &&
           c->system_any == (first != c->system_last) && !(first && c->system_last);
}

/* "[INST]" with the spaces of the template around it. */
static void mistral_mark(ps_chat_out *out, const char *with_spaces, const char *mark) {
    const char *at = strstr(with_spaces, mark);
    ps_chat_put(out, PS_CHAT_TEXT, (ps_str){with_spaces, (uint64_t)(at - with_spaces)});
    ps_chat_puts(out, PS_CHAT_SPECIAL, mark);
    ps_chat_puts(out, PS_CHAT_TEXT, at + strlen(mark));
}

static ps_status render_mistral(const ps_chat *c, const ps_chat_message *m, uint64_t n,
                                const ps_chat_options *options, ps_chat_out *out, ps_error *err) {
    (void)options; /* the closing mark is the opening of the answer */
    uint64_t first = is_role(&m[0], "system");
    if (first != 0 && !c->system_any)
        return wrong_message(err, 0, "this chat template has no system messages");
    ps_status st = check_turns(m, first, n, true, err);
    for (uint64_t i = first; i < n && st == PS_OK; i++) {
        if (is_role(&m[i], "user")) {
            mistral_mark(out, c->open, "[INST]");
            if (first != 0 && i == (c->system_last ? n - 1 : first)) {
                ps_chat_put(out, PS_CHAT_TEXT, m[0].content);
                ps_chat_puts(out, PS_CHAT_TEXT, "\n\n");
            }
            ps_chat_put(out, PS_CHAT_TEXT, m[i].content);
            mistral_mark(out, c->close, "[/INST]");
        } else {
            ps_chat_puts(out, PS_CHAT_TEXT, c->answer);
            ps_chat_put(out, PS_CHAT_TEXT, c->answer_trim ? ps_chat_strip(m[i].content) : m[i].content);
            ps_chat_put(out, PS_CHAT_EOS, (ps_str){"", 0});
            ps_chat_puts(out, PS_CHAT_TEXT, c->answer_end);
        }
    }
    return st;
}

const ps_chat_format *ps_chat_formats(uint32_t *out_n) {
    static const ps_chat_format formats[] = {
        {"chatml", "<|im_start|>", recognise_chatml, render_chatml},
        {"llama3.1", "Cutting Knowledge Date", recognise_llama31, render_llama3},
        {"llama3", "<|start_header_id|>", recognise_llama3, render_llama3},
        {"gemma", "<start_of_turn>", recognise_gemma, render_gemma},
        {"mistral", "[INST]", recognise_mistral, render_mistral},
    };
    *out_n = sizeof formats / sizeof formats[0];
    return formats;
}
