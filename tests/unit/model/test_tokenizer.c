/* Tokenizer on small vocabularies: what each field does, and that malformed ones are refused by key. */
#include <criterion/criterion.h>
#include <math.h>

#include "../../tokenizer_build.h"

static const char *encode(const ps_tokenizer *t, const char *text, uint32_t flags) {
    static char buf[4096];
    return tb_encode(t, text, strlen(text), flags, buf, sizeof buf);
}

#define OPEN(o, ...)                                                                                         \
    static const tb_spec o##_spec = {__VA_ARGS__};                                                           \
    tb_opened o = tb_open(&o##_spec);                                                                        \
    cr_assert_eq(o.status, PS_OK, "%s: %s", o.err.subject, o.err.message)

Test(tokenizer, merges_go_by_rank_then_from_the_left) {
    OPEN(o, .model = "gpt2", .pre = "gpt-2", .tokens = {"ab", "bc", "abc", "aa", "aaa", "aaaa"},
         .merges = {"b c", "a b", "a bc", "a a", "aa aa"}, .bos = TB(0), .eos = TB(0));
    cr_expect_str_eq(encode(o.t, "abc", 0), "258");
    cr_expect_str_eq(encode(o.t, "ab", 0), "256");
    cr_expect_str_eq(encode(o.t, "abab", 0), "256 256");
    cr_expect_str_eq(encode(o.t, "aaa", 0), "259 97");
    cr_expect_str_eq(encode(o.t, "aaaaa", 0), "261 97");
    cr_expect_str_eq(encode(o.t, "a b", 0), "97 32 98", "' b' is a word of its own");
    cr_expect_str_eq(encode(o.t, "", PS_ENCODE_ADD_SPECIAL), "");
    tb_close(&o);
}

Test(tokenizer, a_merge_may_make_what_is_no_token) {
    /* "xy" is no token, but a step to "xyz"; alone it falls apart into its bytes. */
    OPEN(o, .model = "gpt2", .pre = "gpt-2", .tokens = {"xyz"}, .merges = {"x y", "xy z", "xy xy"},
         .bos = TB(0), .eos = TB(0));
    cr_expect_str_eq(encode(o.t, "xyz", 0), "256");
    cr_expect_str_eq(encode(o.t, "xy", 0), "120 121");
    cr_expect_str_eq(encode(o.t, "xyxy", 0), "120 121 120 121");
    tb_close(&o);
}

Test(tokenizer, bytes_without_token_vanish) {
    OPEN(o, .model = "gpt2", .pre = "gpt-2", .no_bytes = true, .tokens = {"a", "b"}, .bos = TB(0),
         .eos = TB(0));
    cr_expect_str_eq(encode(o.t, "a!b", 0), "0 1");
    tb_close(&o);
}

Test(tokenizer, llama3_looks_a_whole_word_up_before_merging) {
    OPEN(o, .model = "gpt2", .pre = "llama-bpe", .tokens = {"hello", "he"}, .merges = {"h e"}, .bos = TB(0),
         .eos = TB(0));
    OPEN(q, .model = "gpt2", .pre = "qwen2", .tokens = {"hello", "he"}, .merges = {"h e"}, .bos = TB(0),
         .eos = TB(0));
    cr_expect_str_eq(encode(o.t, "hello", 0), "256");
    cr_expect_str_eq(encode(q.t, "hello", 0), "257 108 108 111");
    cr_expect(ps_tokenizer_get_info(o.t)->add_bos);
    cr_expect_str_eq(encode(o.t, "hello", PS_ENCODE_ADD_SPECIAL), "0 256");
    tb_close(&o);
    tb_close(&q);
}

Test(tokenizer, llama_merges_by_score_and_falls_back_to_bytes) {
    OPEN(o, .model = "llama",
         .tokens = {"<unk>", "<s>", "</s>", "a", "b", "ab", "bc", "c", "\xE2\x96\x81",
                    "\xE2\x96\x81"
                    "a"},
         .types = {2, 3, 3}, .scores = {0, 0, 0, -1, -2, -5, -4, -6, -7, -3}, .bos = TB(257), .eos = TB(258),
         .unk = TB(256));
    cr_expect_str_eq(encode(o.t, "abc", 0), "265 262", "the prefix joins a first (-3), then b joins c (-4)");
    cr_expect_str_eq(encode(o.t, "\xC3\xA9", 0), "264 195 169");
    cr_expect_str_eq(encode(o.t, "\xFF", PS_ENCODE_ADD_SPECIAL), "257 264 255");
    cr_expect_str_eq(encode(o.t, "", PS_ENCODE_ADD_SPECIAL), "257");
    cr_expect_str_eq(encode(o.t, "a<s>a", PS_ENCODE_PARSE_SPECIAL), "265 257 265",
                     "each stretch gets a space");
    char *text;
    uint64_t len;
    const int32_t ids[] = {257, 265, 262, 258};
    cr_assert_eq(ps_tokenizer_decode(o.t, ids, 4, PS_DECODE_REMOVE_SPECIAL, &text, &len, NULL), PS_OK);
    cr_expect_str_eq(text, " abc", "no prefix is taken off after bos, as in llama.cpp");
    free(text);
    cr_assert_eq(ps_tokenizer_decode(o.t, ids + 1, 2, 0, &text, &len, NULL), PS_OK);
    cr_expect_str_eq(text, "abc");
    free(text);
    tb_close(&o);
}

Test(tokenizer, space_prefix_can_be_off) {
    OPEN(o, .model = "llama",
         .tokens = {"<unk>", "a",
                    "\xE2\x96\x81"
                    "a"},
         .types = {2}, .unk = TB(256), .bos = TB(256), .eos = TB(256), .add_space_prefix = TB(0),
         .add_bos = TB(0), .add_eos = TB(1));
    cr_expect_str_eq(encode(o.t, "a", 0), "257");
    cr_expect_str_eq(encode(o.t, "a", PS_ENCODE_ADD_SPECIAL), "257 256");
    tb_close(&o);
}

Test(tokenizer, the_longest_special_token_wins_wherever_it_stands) {
    OPEN(o, .model = "gpt2", .pre = "gpt-2", .tokens = {"<a><b>", "<b><c><d>", "<c>", "<x>"},
         .types = {4, 4, 4, 3}, .bos = TB(0), .eos = TB(0));
    cr_expect_str_eq(encode(o.t, "<a><b><c><d>", 0), "60 97 62 257");
    cr_expect_str_eq(encode(o.t, "<a><b><c>", 0), "256 258");
    cr_expect_str_eq(encode(o.t, "<c><c><d>", 0), "258 258 60 100 62");
    cr_expect_str_eq(encode(o.t, "<x>", 0), "60 120 62", "control tokens are text unless asked for");
    cr_expect_str_eq(encode(o.t, "<x>", PS_ENCODE_PARSE_SPECIAL), "259");
    tb_close(&o);
}

Test(tokenizer, runs_of_a_special_token_are_cut_from_the_left) {
    OPEN(o, .model = "gpt2", .pre = "gpt-2", .tokens = {"--", "---", "-----"}, .types = {4, 4, 4},
         .bos = TB(0), .eos = TB(0));
    cr_expect_str_eq(encode(o.t, "-", 0), "45");
    cr_expect_str_eq(encode(o.t, "----", 0), "257 45");
    cr_expect_str_eq(encode(o.t, "------------", 0), "258 258 256");
    cr_expect_str_eq(encode(o.t, "a---------b", 0), "97 258 257 45 98");
    tb_close(&o);
}

Test(tokenizer, phi3_tokens_swallow_white_space) {
    OPEN(o, .model = "llama", .name = "My Phi-3 mini", .tokens = {"<unk>", "<s>", "</s>", "<|end|>", "a"},
         .types = {2, 3, 3, 3}, .bos = TB(257), .eos = TB(258), .unk = TB(256), .add_space_prefix = TB(0));
    cr_expect_str_eq(encode(o.t, "<|end|> \n a", PS_ENCODE_PARSE_SPECIAL), "259 260");
    cr_expect_str_eq(encode(o.t, "<|end|> \n<|end|>", PS_ENCODE_PARSE_SPECIAL), "259 259");
    cr_expect_str_eq(encode(o.t, "<s>\n", PS_ENCODE_PARSE_SPECIAL), "257 10");
    tb_close(&o);
}

Test(tokenizer, ends_of_generation) {
    OPEN(o, .model = "gpt2", .pre = "gpt-2",
         .tokens = {"<|im_end|>", "<end_of_turn>", "eos", "<|eom_id|>", "eot", "<|file_sep|>"},
         .types = {3, 1, 1, 3, 1, 1}, .bos = TB(258), .eos = TB(258), .eot = TB(260));
    const bool want[6] = {true, true, true, true, true, true};
    for (int i = 0; i < 6; i++)
        cr_expect_eq(ps_tokenizer_is_eog(o.t, 256 + i), want[i], "token %d", 256 + i);
    cr_expect_not(ps_tokenizer_is_eog(o.t, 97));
    cr_expect_not(ps_tokenizer_is_eog(o.t, -1));
    cr_expect_not(ps_tokenizer_is_eog(o.t, 1 << 30));
    const ps_tokenizer_info *info = ps_tokenizer_get_info(o.t);
    cr_expect_eq(info->eot, 260);
    cr_expect_eq(info->eom, 259);
    cr_expect(ps_tokenizer_attr(o.t, 257) & PS_TOKEN_CONTROL, "a text that looks like control is control");
    tb_close(&o);
}

Test(tokenizer, end_is_no_end_where_return_and_call_are) {
    OPEN(o, .model = "gpt2", .pre = "gpt-2", .tokens = {"<|end|>", "<|return|>", "<|call|>", "<|channel|>"},
         .types = {3, 3, 3, 3}, .bos = TB(256), .eos = TB(257));
    cr_expect_not(ps_tokenizer_is_eog(o.t, 256));
    cr_expect(ps_tokenizer_is_eog(o.t, 257));
    cr_expect_eq(ps_tokenizer_attr(o.t, 256), PS_TOKEN_USER_DEFINED);
    cr_expect_eq(ps_tokenizer_attr(o.t, 259), PS_TOKEN_USER_DEFINED);
    tb_close(&o);
}

Test(tokenizer, pieces_by_type) {
    OPEN(o, .model = "llama",
         .tokens = {"<unk>", "<s>", "\xE2\x96\x81hi\xE2\x96\x81", "\xE2\x96\x81user", "unused", ""},
         .types = {2, 3, 1, 4, 5, 1}, .bos = TB(257), .eos = TB(257), .unk = TB(256));
    const struct {
        int32_t id;
        bool special;
        const char *want;
    } rows[] = {{256, false, ""},     {256, true, "<unk>"},
                {257, false, ""},     {257, true, "<s>"},
                {258, false, " hi "}, {259, false, "\xE2\x96\x81user"},
                {260, false, ""},     {261, false, "[EMPTY_261]"},
                {0x41, false, "A"},   {-1, true, ""},
                {262, true, ""}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char buf[64] = {0};
        uint64_t n = ps_tokenizer_piece(o.t, rows[i].id, rows[i].special, buf, sizeof buf - 1);
        cr_expect_eq(n, strlen(rows[i].want));
        cr_expect_str_eq(buf, rows[i].want);
    }
    char two[2] = {'?', '?'};
    cr_expect_eq(ps_tokenizer_piece(o.t, 258, false, two, 1), 4, "the length is that of the piece");
    cr_expect_eq(two[1], '?', "and nothing is written past the room");
    cr_expect_eq(ps_tokenizer_max_piece(o.t), 11);
    cr_expect_eq(ps_tokenizer_find(o.t, "<s>", 3), 257);
    cr_expect_eq(ps_tokenizer_find(o.t, "<s", 2), PS_TOKEN_NONE);
    cr_expect_eq(ps_tokenizer_text(o.t, 257).len, 3);
    cr_expect_null(ps_tokenizer_text(o.t, -1).data);
    tb_close(&o);
}

Test(tokenizer, a_character_that_is_no_byte_shows_as_such) {
    OPEN(o, .model = "gpt2", .pre = "gpt-2", .tokens = {"a\xE4\xB8\xAD"}, .bos = TB(0), .eos = TB(0));
    char buf[64] = {0};
    ps_tokenizer_piece(o.t, 256, false, buf, sizeof buf - 1);
    cr_expect_str_eq(buf, "a[UNK_BYTE_0xe4b8ada\xE4\xB8\xAD]");
    tb_close(&o);
}

Test(tokenizer, spaces_are_cleaned_where_the_model_says_so) {
    OPEN(o, .model = "gpt2", .pre = "gpt-2", .bos = TB(0), .eos = TB(0));
    static const char *const rows[][2] = {
        {"a ! b ?", "a! b?"}, {"x ' y", "x'y"}, {"it 's I 'm we 've", "it's I'm we've"},
        {"he 'll", "he 'll"}, {" .", "."},      {"", ""},
        {"' '", "' '"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ps_tokens ids = {0};
        char *text = NULL;
        uint64_t len;
        cr_assert_eq(ps_tokenizer_encode(o.t, rows[i][0], strlen(rows[i][0]), 0, &ids, NULL), PS_OK);
        cr_assert_eq(ps_tokenizer_decode(o.t, ids.ids, ids.n, 0, &text, &len, NULL), PS_OK);
        cr_expect_str_eq(text, rows[i][1]);
        free(text);
        ps_tokens_free(&ids);
    }
    tb_close(&o);
}

Test(tokenizer, decoding_refuses_ids_outside_the_vocabulary) {
    OPEN(o, .model = "gpt2", .pre = "gpt-2", .bos = TB(0), .eos = TB(0));
    const int32_t bad[] = {-1, 256, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        char *text = NULL;
        uint64_t len;
        ps_error err;
        cr_expect_eq(ps_tokenizer_decode(o.t, &bad[i], 1, 0, &text, &len, &err), PS_E_USAGE);
        cr_expect_null(text);
    }
    tb_close(&o);
}

Test(tokenizer, encoding_appends_and_refuses_what_is_too_long) {
    OPEN(o, .model = "gpt2", .pre = "gpt-2", .bos = TB(0), .eos = TB(0));
    ps_tokens ids = {0};
    ps_error err;
    cr_assert_eq(ps_tokenizer_encode(o.t, "a", 1, 0, &ids, &err), PS_OK);
    cr_assert_eq(ps_tokenizer_encode(o.t, "b", 1, 0, &ids, &err), PS_OK);
    cr_expect_eq(ids.n, 2);
    cr_expect_eq(ids.ids[1], 'b');
    cr_expect_eq(ps_tokenizer_encode(o.t, "b", (uint64_t)PS_ENCODE_MAX_BYTES + 1, 0, &ids, &err), PS_E_USAGE);
    cr_expect_eq(ids.n, 2);
    ps_tokens_free(&ids);
    tb_close(&o);
}

/* Each row breaks one thing. */
static char long_token[PS_TOKEN_MAX_BYTES + 2];
static const struct bad {
    ps_status status;
    const char *subject, *message; /* message: part of it */
    tb_spec spec;
} bad[] = {
    {PS_E_DATA, "tokenizer.ggml.model", "", {.model = NULL}},
    {PS_E_UNSUPPORTED, "tokenizer.ggml.model", "bert", {.model = "bert"}},
    {PS_E_UNSUPPORTED, "tokenizer.ggml.model", "gemma4", {.model = "gemma4"}},
    {PS_E_UNSUPPORTED, "tokenizer.ggml.pre", "tekken", {.model = "gpt2", .pre = "tekken"}},
    {PS_E_UNSUPPORTED, "tokenizer.ggml.pre", "''", {.model = "gpt2", .pre = ""}},
    {PS_E_DATA, "tokenizer.ggml.tokens", "missing", {.model = "gpt2", .no_tokens = true}},
    {PS_E_DATA, "tokenizer.ggml.tokens", "strings", {.model = "gpt2", .tokens_type = 4}},
    {PS_E_DATA, "tokenizer.ggml.tokens", "0 tokens", {.model = "gpt2", .no_bytes = true}},
    {PS_E_DATA, "tokenizer.ggml.tokens", "256 and 257", {.model = "gpt2", .tokens = {"xx", "xx"}}},
    {PS_E_DATA, "tokenizer.ggml.tokens", "97 and 256", {.model = "gpt2", .tokens = {"a"}}},
    {PS_E_UNSUPPORTED, "tokenizer.ggml.tokens", "4097", {.model = "gpt2", .tokens = {long_token}}},
    {PS_E_DATA, "tokenizer.ggml.tokens", "type byte", {.model = "llama", .tokens = {"<0xG0>"}, .types = {6}}},
    {PS_E_DATA, "tokenizer.ggml.tokens", "type byte", {.model = "gpt2", .tokens = {"<0x"}, .types = {6}}},
    {PS_E_DATA, "tokenizer.ggml.token_type", "255 entries", {.model = "gpt2", .short_types = true}},
    {PS_E_DATA, "tokenizer.ggml.token_type", "not an array", {.model = "gpt2", .types_type = 6}},
    {PS_E_DATA, "tokenizer.ggml.scores", "255 entries", {.model = "llama", .short_scores = true}},
    {PS_E_DATA, "tokenizer.ggml.scores", "token 256", {.model = "llama", .tokens = {"q"}, .scores = {NAN}}},
    {PS_E_DATA, "tokenizer.ggml.merges", "missing", {.model = "gpt2", .no_merges = true}},
    {PS_E_DATA, "tokenizer.ggml.merges", "strings", {.model = "gpt2", .merges_type = 4}},
    {PS_E_DATA, "tokenizer.ggml.merges", "merge 1", {.model = "gpt2", .merges = {"a b", "ab"}}},
    {PS_E_DATA, "tokenizer.ggml.merges", "merge 0", {.model = "gpt2", .merges = {""}}},
    {PS_E_DATA, "tokenizer.ggml.merges", "merge 0", {.model = "gpt2", .merges = {" "}}},
    {PS_E_DATA, "tokenizer.ggml.merges", "merge 0", {.model = "gpt2", .merges = {"a "}}},
    {PS_E_DATA, "tokenizer.ggml.merges", "merge 0", {.model = "gpt2", .merges = {" ab"}}},
    {PS_E_DATA, "tokenizer.ggml.bos_token_id", "256", {.model = "gpt2", .bos = TB(256)}},
    {PS_E_DATA, "tokenizer.ggml.eos_token_id", "4294967295", {.model = "gpt2", .eos = TB(0xFFFFFFFF)}},
    {PS_E_DATA, "tokenizer.ggml.unknown_token_id", "300", {.model = "llama", .unk = TB(300)}},
    {PS_E_DATA, "tokenizer.ggml.eot_token_id", "300", {.model = "llama", .eot = TB(300)}},
    {PS_E_DATA, "tokenizer.ggml.bos_token_id", "missing", {.model = "gpt2", .pre = "llama-bpe"}},
    {PS_E_DATA, "tokenizer.ggml.bos_token_id", "missing", {.model = "gpt2", .add_bos = TB(1)}},
    {PS_E_DATA,
     "tokenizer.ggml.eos_token_id",
     "missing",
     {.model = "llama",
      .no_bytes = true,
      .tokens = {"<unk>"},
      .types = {2},
      .add_bos = TB(0),
      .add_eos = TB(1)}},
};

Test(tokenizer, malformed_vocabularies_are_refused_by_key) {
    memset(long_token, 'x', sizeof long_token - 1);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tb_opened o = tb_open(&bad[i].spec);
        cr_expect_eq(o.status, bad[i].status, "row %zu: %s", i, ps_status_name(o.status));
        cr_expect_eq(o.err.status, bad[i].status, "row %zu", i);
        cr_expect_eq(strncmp(o.err.subject, "built: ", 7), 0, "row %zu: the file is not named: %s", i,
                     o.err.subject);
        cr_expect_str_eq(o.err.subject + 7, bad[i].subject, "row %zu: %s", i, o.err.subject);
        cr_expect_not_null(strstr(o.err.message, bad[i].message), "row %zu: %s", i, o.err.message);
        cr_expect_null(o.t, "row %zu", i);
        tb_close(&o);
    }
}

Test(tokenizer, text_comes_out_in_whole_characters) {
    ps_utf8_stream s = {0};
    char out[16];
    const char *smile = "\xF0\x9F\x99\x82";
    for (int i = 0; i < 3; i++)
        cr_expect_eq(ps_utf8_stream_push(&s, smile + i, 1, out), 0);
    cr_expect_eq(ps_utf8_stream_push(&s, smile + 3, 1, out), 4);
    cr_expect_eq(memcmp(out, smile, 4), 0);
    cr_expect_eq(ps_utf8_stream_push(&s, "ab\xC3", 3, out), 2);
    cr_expect_eq(ps_utf8_stream_push(&s, "\xA9z", 2, out), 3);
    cr_expect_eq(memcmp(out, "\xC3\xA9z", 3), 0);
    cr_expect_eq(ps_utf8_stream_push(&s, "\x80\x80\x80\x80", 4, out), 4, "strays pass through");
    cr_expect_eq(ps_utf8_stream_push(&s, "\xE4\xB8", 2, out), 0);
    cr_expect_eq(ps_utf8_stream_push(&s, "x", 1, out), 3, "what cannot be completed passes through");
    cr_expect_eq(ps_utf8_stream_push(&s, "", 0, out), 0);
    cr_expect_eq(ps_utf8_stream_push(&s, "\xE4", 1, out), 0);
    cr_expect_eq(ps_utf8_stream_flush(&s, out), 1);
    cr_expect_eq(ps_utf8_stream_flush(&s, out), 0);
}

Test(tokenizer, pre_tokenizers_have_names_of_their_own) {
    for (uint32_t i = 0; ps_tokenizer_pre_name(i) != NULL; i++)
        for (uint32_t k = 0; k < i; k++)
            cr_expect_str_neq(ps_tokenizer_pre_name(i), ps_tokenizer_pre_name(k));
}
