/* The plan in YAML and in binary: the same meaning, the same bytes, and what is refused. */
#include <criterion/criterion.h>
#include <string.h>

#include "plan_case.h"
#include "schemas/plan_fields.h"

static void must(ps_status status, const ps_error *err) {
    char line[600];
    cr_assert_eq(status, PS_OK, "%s", ps_error_format(err, line, sizeof line));
}

Test(plan_document, yaml_binary_yaml_is_the_identity) {
    const mb_shape *shapes[] = {&mb_llama_small, &mb_qwen3_small, &mb_qwen3moe_small, &mb_gemma3_small};
    for (int i = 0; i < 4; i++) {
        plan_case c;
        plan_case_open(&c, shapes[i]);
        ps_error err = {0};
        char *yaml, *yaml2;
        uint8_t *binary, *binary2;
        uint64_t n_yaml, n_yaml2, n_binary, n_binary2;
        ps_plan *from_yaml, *from_binary;
        must(ps_plan_to_yaml(c.plan, &yaml, &n_yaml, &err), &err);
        must(ps_plan_parse(yaml, n_yaml, "p.yaml", &from_yaml, &err), &err);
        must(ps_plan_to_binary(from_yaml, &binary, &n_binary, &err), &err);
        must(ps_plan_parse(binary, n_binary, "p.bin", &from_binary, &err), &err);
        must(ps_plan_to_yaml(from_binary, &yaml2, &n_yaml2, &err), &err);
        must(ps_plan_to_binary(c.plan, &binary2, &n_binary2, &err), &err);
        cr_assert_eq(n_yaml, n_yaml2);
        cr_assert_eq(memcmp(yaml, yaml2, n_yaml), 0);
        cr_assert_eq(n_binary, n_binary2);
        cr_assert_eq(memcmp(binary, binary2, n_binary), 0);
        free(yaml);
        free(yaml2);
        free(binary);
        free(binary2);
        ps_plan_free(from_yaml);
        ps_plan_free(from_binary);
        plan_case_close(&c);
    }
}

Test(plan_document, values_survive) {
    plan_case c;
    ps_error err = {0};
    uint8_t *binary;
    uint64_t n;
    ps_plan *p;
    plan_case_open(&c, &mb_llama_small);
    must(ps_plan_to_binary(c.plan, &binary, &n, &err), &err);
    must(ps_plan_parse(binary, n, "p", &p, &err), &err);
    cr_assert_str_eq(p->tool, c.plan->tool);
    cr_assert_eq(p->synthetic_profile, true);
    cr_assert_eq(p->facts.n_allowed, 7);
    cr_assert_eq(p->facts.memory_bytes, (uint64_t)64 << 30);
    cr_assert_eq(p->facts.vram_bytes, (uint64_t)8 << 30);
    cr_assert_str_eq(p->facts.gpu_driver, "999.1");
    cr_assert_str_eq(p->facts.gpu_name, "Test GPU");
    cr_assert_eq(p->n_programs, 3);
    for (uint32_t i = 0; i < 3; i++) {
        const ps_program *a = &c.plan->programs[i], *b = &p->programs[i];
        cr_assert_eq(a->n_instrs, b->n_instrs);
        for (uint32_t k = 0; k < a->n_instrs; k++) {
            cr_assert_eq(a->instrs[k].op, b->instrs[k].op);
            cr_assert_eq(a->instrs[k].kernel, b->instrs[k].kernel);
            cr_assert_eq(a->instrs[k].row0, b->instrs[k].row0);
            cr_assert_arr_eq(a->instrs[k].src, b->instrs[k].src, sizeof a->instrs[k].src);
            cr_assert_arr_eq(a->instrs[k].wait, b->instrs[k].wait, sizeof a->instrs[k].wait);
        }
    }
    cr_assert_eq(p->levels[1].tiers[2].predicted[3].end_full_s,
                 c.plan->levels[1].tiers[2].predicted[3].end_full_s);
    cr_assert_eq(p->levels[1].kv[1].offset, c.plan->levels[1].kv[1].offset);
    free(binary);
    ps_plan_free(p);
    plan_case_close(&c);
}

Test(plan_document, damage_to_a_binary_plan_is_noticed) {
    plan_case c;
    ps_error err = {0};
    uint8_t *binary;
    uint64_t n;
    ps_plan *p;
    plan_case_open(&c, &mb_llama_small);
    must(ps_plan_to_binary(c.plan, &binary, &n, &err), &err);
    for (uint64_t i = 0; i < n; i += i < 600 ? 1 : 97) {
        binary[i] ^= 0x10;
        cr_assert_neq(ps_plan_parse(binary, n, "p", &p, &err), PS_OK, "byte %llu", (unsigned long long)i);
        cr_assert_null(p);
        binary[i] ^= 0x10;
        cr_assert_neq(ps_plan_parse(binary, i, "p", &p, &err), PS_OK);
    }
    binary[n / 2] ^= 1;
    cr_assert_eq(ps_plan_parse(binary, n, "p", &p, &err), PS_E_DATA);
    cr_assert_str_eq(err.message, "checksum mismatch: the file is damaged");
    binary[4] = 3;
    cr_assert_eq(ps_plan_parse(binary, n, "p", &p, &err), PS_E_UNSUPPORTED);
    free(binary);
    plan_case_close(&c);
}

/* The text with one piece replaced; the piece must be there. */
static char *replaced(const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    cr_assert_not_null(at, "\"%s\" is not in the text", from);
    char *out = malloc(strlen(text) + strlen(to) + 1);
    sprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return out;
}

Test(plan_document, what_is_wrong_in_yaml_is_named_with_its_place) {
    static const struct {
        const char *from, *to, *error;
    } changes[] = {
        {"pinstripe-plan: 2", "pinstripe-plan: 1",
         "p.yaml: pinstripe-plan: plan version 1, this program reads version 2"},
        {"arch:", "archi:", "p.yaml: unknown key \"archi\" (line 5, column 1)"},
        {"n_layers: 2", "n_layers: 1", "kv: must have 1 rows, has 2"},
        {"- [attn, 1,", "- [attn, 2,", "p.yaml: shard 3: layer: 2 of 2"},
        {"name: norm.f32,", "name: x.f32,", "two of the name \"x.f32\""},
        {"name: norm.f32,", "name: none,", "\"none\" cannot be a name"},
        {"dst: norm.f32,", "dst: norm32,", "dst: no buffer is called \"norm32\""},
        {"kernel: cpu.rope.F32.f32.f32", "kernel: cpu.rope", "kernel: no kernel is called \"cpu.rope\""},
        {"w: [attn_q.weight]", "w: [attn_z.weight]", "w: unknown tensor role \"attn_z.weight\""},
        {"w: [attn_q.weight]", "w: [attn_q.weight, none, none, none]", "w: must have 1 to 3 values, has 4"},
        {"w: [attn_q.weight]", "w: []", "w: must have 1 to 3 values, has 0"},
        {"queue: cpu", "queue: dma", "queue: unknown queue \"dma\""},
        {"wait: [1]", "wait: [2, 1]", "wait: distances must ascend from 1"},
        {"wait: [1]", "wait: [0]", "wait: distances must ascend from 1"},
        {"wait: [1]", "wait: [1, 2, 3, 4, 5, 6, 7]", "wait: must have 1 to 6 values, has 7"},
        {"layers: [0, 2]", "layers: [1, 2]", "layers: 2 from 1 on, the model has 2"},
        {"layers: [0, 2]", "layers: [0]", "layers: must have 2 values, has 1"},
        {"loop: once\n", "loop: once\n        layers: [0, 1]\n", "\"layers\" belongs to loop: layers"},
        {"fmt: q8, rows: tile, col0: 0, cols: 64", "fmt: q8, rows: tile, col0: 0, cols: 65",
         "cols: must be a multiple of 32 in q8"},
        {"max_tokens: 8", "max_tokens: 513", "tiers must ascend"},
        {"program: 1", "program: 7", "program 7 of 3"},
        {"max_outputs: 4", "max_outputs: 9", "max_outputs: must be from 1 to max_tokens, is 9"},
        {"scratch_offset: ", "scratch_offset: 1 # ", "scratch_offset: no multiple of 64"},
        {"buffer_offset: [", "buffer_offset: [0, ", "buffer_offset: must have 17 values, has 18"},
        {"placement: [host, ", "placement: [", "placement: must have 6 values, has 5"},
        {"placement: [host", "placement: [cloud", "placement: unknown placement \"cloud\""},
        {"step_full_s: ", "step_full_s: -", "step times: times must be finite and not negative"},
        {"n_seqs: 1", "n_seqs: 0", "must not be zero"},
        {"budget_bytes: 0", "budget_bytes: 99999999999", "\"host\" with 99999999999 bytes"},
        {"budget: \"host\"\n    budget_bytes: 0", "budget: \"big\"\n    budget_bytes: 99999999999",
         "levels must ascend"},
        {"budget: \"host\"", "budget: \"\"", "\"\" with 0 bytes"},
        {"budget: \"2GiB\"", "budget: \"host\"", "\"host\" with 2147483648 bytes"},
    };
    plan_case c;
    ps_error err = {0};
    char *text, line[600];
    uint64_t n;
    plan_case_open(&c, &mb_llama_small);
    must(ps_plan_to_yaml(c.plan, &text, &n, &err), &err);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        char *bad = replaced(text, changes[i].from, changes[i].to);
        ps_plan *p;
        ps_status status = ps_plan_parse(bad, strlen(bad), "p.yaml", &p, &err);
        ps_error_format(&err, line, sizeof line);
        cr_expect_neq(status, PS_OK, "%s", changes[i].to);
        cr_expect_null(p);
        cr_expect(strstr(line, changes[i].error) != NULL && strncmp(line, "p.yaml", 6) == 0,
                  "wanted \"%s\", got \"%s\"", changes[i].error, line);
        free(bad);
    }
    free(text);
    plan_case_close(&c);
}

Test(plan_document, writers_refuse_a_broken_plan) {
    plan_case c;
    ps_error err = {0};
    char *text;
    uint8_t *binary;
    uint64_t n;
    plan_case_open(&c, &mb_llama_small);
    c.plan->levels[0].tiers[0].step_full_s = 0.0 / 0.0;
    cr_assert_eq(ps_plan_to_yaml(c.plan, &text, &n, &err), PS_E_DATA);
    cr_assert_eq(ps_plan_to_binary(c.plan, &binary, &n, &err), PS_E_DATA);
    cr_assert_str_eq(err.subject, "level 0: tier 0: step_full_s");
    plan_case_close(&c);
}

Test(plan_document, the_cursor_walks_blocks_layers_tiles) {
    ps_instr instrs[4] = {{0}};
    ps_block blocks[] = {
        {.loop = PS_LOOP_ONCE, .n_layers = 1, .over_tiles = true, .instr0 = 0, .n_instrs = 1},
        {.loop = PS_LOOP_LAYERS, .layer0 = 3, .n_layers = 2, .over_tiles = true, .instr0 = 1, .n_instrs = 2},
        {.loop = PS_LOOP_ONCE, .n_layers = 1, .instr0 = 3, .n_instrs = 1},
    };
    ps_program p = {.n_instrs = 4, .instrs = instrs, .n_blocks = 3, .blocks = blocks};
    static const uint32_t want[][3] = {/* instruction, layer, tile */
                                       {0, 0, 0}, {0, 0, 1}, {0, 0, 2}, {1, 3, 0}, {2, 3, 0}, {1, 3, 1},
                                       {2, 3, 1}, {1, 3, 2}, {2, 3, 2}, {1, 4, 0}, {2, 4, 0}, {1, 4, 1},
                                       {2, 4, 1}, {1, 4, 2}, {2, 4, 2}, {3, 0, 0}};
    ps_cursor cursor;
    uint32_t layer, n = 0;
    cr_assert_eq(ps_program_length(&p, 3), 16);
    ps_cursor_start(&cursor, &p, 3);
    for (const ps_instr *in; (in = ps_cursor_get(&cursor, &layer)) != NULL; ps_cursor_next(&cursor), n++) {
        cr_assert_lt(n, 16);
        cr_assert_eq(cursor.index, n);
        cr_assert_eq((uint32_t)(in - instrs), want[n][0]);
        cr_assert_eq(layer, want[n][1]);
        cr_assert_eq(cursor.tile, want[n][2]);
    }
    cr_assert_eq(n, 16);
    ps_cursor_next(&cursor);
    cr_assert_null(ps_cursor_get(&cursor, &layer));
    blocks[1].n_layers = UINT32_MAX;
    cr_assert_eq(ps_program_length(&p, UINT32_MAX), UINT64_MAX);
}
