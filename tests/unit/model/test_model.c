/* Bytes of shards and of the KV cache against tables computed by hand, FLOPs and weight traffic of single
 * operations, and the two real models where their files are present. */
#include <criterion/criterion.h>
#include <math.h>
#include <unistd.h>

#include "../../model_builder.h"
#include "model/model.h"

typedef struct opened {
    mb b;
    ps_gguf *gguf;
    ps_model *model;
} opened;

static opened open_shape(const mb_shape *shape) {
    opened o = {.gguf = NULL};
    ps_error e = {.status = PS_OK};
    char line[600];
    uint64_t size;
    mb_model(&o.b, shape);
    const uint8_t *data = mb_finish(&o.b, &size);
    ps_status st = ps_gguf_open_memory(data, size, "test.gguf", &o.gguf, &e);
    cr_assert_eq(st, PS_OK, "%s", ps_error_format(&e, line, sizeof line));
    st = ps_model_open(o.gguf, &o.model, &e);
    cr_assert_eq(st, PS_OK, "%s", ps_error_format(&e, line, sizeof line));
    return o;
}

static void close_shape(opened *o) {
    ps_model_close(o->model);
    ps_gguf_close(o->gguf);
    mb_free(&o->b);
}

static const ps_op_desc *find_op(const ps_shard *s, ps_op op, ps_role w) {
    for (uint32_t i = 0; i < s->n_ops; i++)
        if (s->ops[i].op == op && s->ops[i].w[0] == w)
            return &s->ops[i];
    cr_assert_fail("operation not found");
    return NULL;
}

/* embed and head, and two numbers that every layer has. */
static void check_shards(const ps_model *m, uint64_t embed, uint64_t attn, uint64_t ffn, uint64_t head,
                         uint64_t total) {
    ps_shard_kind kind = m->layers[0].n_expert ? PS_SHARD_MOE : PS_SHARD_FFN;
    uint64_t sum = 0;
    cr_assert_eq(m->n_shards, 2 * m->n_layers + 2);
    cr_assert_eq(m->shards[0].kind, PS_SHARD_EMBED);
    cr_assert_eq(m->shards[0].weight_bytes, embed);
    for (uint32_t l = 0; l < m->n_layers; l++) {
        const ps_shard *a = &m->shards[1 + 2 * l], *f = a + 1;
        cr_assert(a->kind == PS_SHARD_ATTN && a->layer == l && a->weight_bytes == attn);
        cr_assert(f->kind == kind && f->layer == l && f->weight_bytes == ffn);
    }
    cr_assert_eq(m->shards[m->n_shards - 1].kind, PS_SHARD_HEAD);
    cr_assert_eq(m->shards[m->n_shards - 1].weight_bytes, head);
    for (uint32_t i = 0; i < m->n_shards; i++)
        sum += m->shards[i].weight_bytes;
    cr_assert_eq(sum, total);
    cr_assert_eq(m->weight_bytes, total);
    cr_assert_eq(m->gguf->data_bytes, total);
}

/* Q4_0: 18 bytes per 32. A row of 4096 is 2304 bytes, of 14336 8064. Q6_K: 210 per 256, 4096 is 3360.
 *   token_embd  128256 * 2304                    = 295501824, rope_freqs 64 * 4 = 256
 *   attn        4*4096 + 2*(4096*2304) + 2*(1024*2304) = 16384 + 18874368 + 4718592 = 23609344
 *   ffn         4*4096 + 2*(14336*2304) + 4096*8064     = 16384 + 66060288 + 33030144 = 99106816
 *   head        4*4096 + 128256*3360             = 16384 + 430940160 = 430956544
 *   all         295502080 + 32*122716160 + 430956544 = 4653375744 */
Test(model, llama_3_8b_by_hand) {
    opened o = open_shape(&mb_llama3_8b);
    const ps_model *m = o.model;
    check_shards(m, 295502080, 23609344, 99106816, 430956544, 4653375744);
    /* 2 * 128256*4096 + 4096 + 64 + 32*(2*4096 + 2*4096*4096 + 2*4096*1024 + 3*4096*14336) */
    cr_assert_eq(m->n_params, 8030261312);
    cr_assert(!m->tied_output && m->embed_scale == 1.0f && m->rope_style == PS_ROPE_NORMAL);
    cr_assert_eq(m->n_rope_factors, 64);
    for (uint32_t i = 0; i < 64; i++)
        cr_assert_eq(m->rope_factors[i], 1.0f);
    for (uint32_t l = 0; l < 32; l++) { /* a row: 8*128 halfs of K and as many of V = 4096 bytes */
        cr_assert_eq(ps_model_kv_rows(m, l, 8192, 512), 8192);
        cr_assert_eq(ps_model_kv_bytes(m, l, 8192), 33554432);
    }
    close_shape(&o);
}

/*   token_embd  151936 * 1152                    = 175030272
 *   attn        4*2048 + 4096*1152 + 2*(512*1152) + 2048*2304 + 2*4*128
 *                                                = 8192 + 4718592 + 1179648 + 4718592 + 1024 = 10626048
 *   moe         4*2048 + router 4*2048*128 + 2*(128*768*1152) + 128*2048*432
 *                                                = 8192 + 1048576 + 226492416 + 113246208 = 340795392
 *   head        4*2048 + 151936*1680             = 8192 + 255252480 = 255260672
 *   all         175030272 + 48*351421440 + 255260672 = 17298520064 */
Test(model, qwen3_30b_a3b_by_hand) {
    opened o = open_shape(&mb_qwen3_30b_a3b);
    const ps_model *m = o.model;
    check_shards(m, 175030272, 10626048, 340795392, 255260672, 17298520064);
    cr_assert(m->rope_style == PS_ROPE_NEOX && m->moe_norm_topk);
    for (uint32_t l = 0; l < 48; l++) { /* a row: 2 * 4*128 halfs = 2048 bytes */
        cr_assert_eq(ps_model_kv_rows(m, l, 32768, 2048), 32768);
        cr_assert_eq(ps_model_kv_bytes(m, l, 32768), 67108864);
        cr_assert_eq(m->layers[l].n_ff, 0);
        cr_assert_eq(m->layers[l].n_expert_used, 8);
    }
    /* One token reads 8 of 128 experts: 339738624 / 16. Two: 128 * (1 - (15/16)^2) = 15.5 of them. */
    const ps_op_desc *moe = find_op(&m->shards[2], PS_OP_MOE_DISPATCH, PS_ROLE_FFN_GATE_EXPS);
    cr_assert_float_eq(ps_op_weight_bytes(m, 0, moe, 1), 21233664.0, 0.5);
    cr_assert_float_eq(ps_op_weight_bytes(m, 0, moe, 2), 41140224.0, 0.5);
    cr_assert_float_eq(ps_op_weight_bytes(m, 0, moe, 100000), 339738624.0, 0.5);
    /* 8 experts: products 3 * 2*2048*768, GLU 5*768, weighted sum 2*2048; residual 2048 once */
    cr_assert_eq(ps_op_flops(m, 0, moe, 1, 1), 8 * (9437184.0 + 3840 + 4096) + 2048);
    close_shape(&o);
}

/* BF16.
 *   token_embd  262144*640*2                     = 335544320
 *   attn        2*4*640 + 2*4*256 + 640*1024*2 + 2*(640*256*2) + 1024*640*2
 *                                                = 5120 + 2048 + 1310720 + 655360 + 1310720 = 3283968
 *   ffn         2*4*640 + 3*640*2048*2           = 5120 + 7864320 = 7869440
 *   head        4*640                            = 2560, the tied matrix is in token_embd
 *   all         335544320 + 18*11153408 + 2560   = 536308224 */
Test(model, gemma_3_270m_by_hand) {
    opened o = open_shape(&mb_gemma3_270m);
    const ps_model *m = o.model;
    check_shards(m, 335544320, 3283968, 7869440, 2560, 536308224);
    cr_assert(m->tied_output && m->w[PS_ROLE_OUTPUT] == m->w[PS_ROLE_TOKEN_EMBD]);
    cr_assert_float_eq(m->embed_scale, 25.298221f, 1e-5f);
    cr_assert(m->glu == PS_GLU_GELU_TANH && m->rope_style == PS_ROPE_NEOX);
    uint64_t sum = 0;
    for (uint32_t l = 0; l < 18; l++) { /* a row: 2 * 256 halfs = 1024 bytes; layers 5, 11 and 17 are full */
        bool full = l == 5 || l == 11 || l == 17;
        uint64_t rows = ps_model_kv_rows(m, l, 32768, 2048);
        cr_assert_eq(rows, full ? 32768 : 2560);
        cr_assert_eq(ps_model_kv_bytes(m, l, rows), full ? 33554432 : 2621440);
        sum += ps_model_kv_bytes(m, l, rows);
        cr_assert_eq(m->layers[l].window, full ? 0 : 512);
        cr_assert_eq(m->layers[l].rope_base, full ? 1000000.0f : 10000.0f);
        cr_assert_eq(m->layers[l].attn_scale, 0.0625f);
        cr_assert_eq(ps_model_kv_rows(m, l, 600, 2048), 600);
    }
    cr_assert_eq(sum, 139984896);
    close_shape(&o);
}

Test(model, kv_sizes_at_the_edges) {
    opened o = open_shape(&mb_gemma3_small);
    const ps_model *m = o.model;
    cr_assert_eq(ps_model_kv_rows(m, 0, 100, 1), 17);
    cr_assert_eq(ps_model_kv_rows(m, 0, 17, 1), 17);
    cr_assert_eq(ps_model_kv_rows(m, 0, 16, 1), 16);
    cr_assert_eq(ps_model_kv_rows(m, 0, 100, UINT64_MAX), 100);
    cr_assert_eq(ps_model_kv_rows(m, 5, 100, 1), 100);
    cr_assert_eq(ps_model_kv_bytes(m, 0, 0), 0);
    cr_assert_eq(ps_model_kv_bytes(m, 0, 1), 128); /* 32 halfs are one plane of 64 bytes, and V the same */
    cr_assert_eq(ps_model_kv_bytes(m, 0, UINT64_MAX / 8), UINT64_MAX);
    cr_assert_eq(ps_model_kv_bytes(m, 0, UINT64_MAX / 127), UINT64_MAX);
    close_shape(&o);
}

/* gemma3 small: width 64, 4 heads and 1 KV head of 32, feed-forward 96, window 16. */
Test(model, flops_by_hand) {
    opened o = open_shape(&mb_gemma3_small);
    const ps_model *m = o.model;
    const ps_shard *attn = &m->shards[1], *ffn = &m->shards[2], *full = &m->shards[1 + 2 * 5];
    cr_assert_eq(ps_op_flops(m, 0, find_op(attn, PS_OP_MATMUL, PS_ROLE_ATTN_Q), 3, 3), 3 * 128 * 2 * 64);
    cr_assert_eq(ps_op_flops(m, 0, find_op(attn, PS_OP_RMSNORM, PS_ROLE_ATTN_NORM), 3, 3), 3 * 64 * 4);
    cr_assert_eq(ps_op_flops(m, 0, find_op(attn, PS_OP_RMSNORM, PS_ROLE_ATTN_POST_NORM), 3, 3), 3 * 64 * 5);
    cr_assert_eq(ps_op_flops(m, 0, find_op(attn, PS_OP_ROPE, PS_ROLE_NONE), 1, 1), 128 * 3);
    cr_assert_eq(ps_op_flops(m, 0, find_op(ffn, PS_OP_GLU, PS_ROLE_NONE), 2, 2), 2 * 96 * 9);
    cr_assert_eq(ps_op_flops(m, 0, m->shards[0].ops, 2, 2), 2 * 64);
    const ps_op_desc *a = find_op(attn, PS_OP_ATTENTION, PS_ROLE_NONE);
    const double pair = 4 * (2 * 32 + 2 * 32 + 5);
    cr_assert_eq(ps_op_flops(m, 0, a, 1, 10), 10 * pair);
    cr_assert_eq(ps_op_flops(m, 0, a, 1, 100), 16 * pair);            /* the window */
    cr_assert_eq(ps_op_flops(m, 0, a, 4, 4), (1 + 2 + 3 + 4) * pair); /* causal */
    cr_assert_eq(ps_op_flops(m, 0, a, 4, 18), (15 + 16 + 16 + 16) * pair);
    cr_assert_eq(ps_op_flops(m, 0, a, 20, 20), (136 + 4 * 16) * pair);
    cr_assert_eq(ps_op_flops(m, 0, a, 4, 0), (1 + 2 + 3 + 4) * pair); /* n_kv holds the rows themselves */
    cr_assert_eq(ps_op_flops(m, 5, find_op(full, PS_OP_ATTENTION, PS_ROLE_NONE), 1, 100), 100 * pair);
    cr_assert_eq(ps_op_weight_bytes(m, 0, m->shards[0].ops, 3), 3 * 68);
    cr_assert_eq(ps_op_weight_bytes(m, 0, m->shards[0].ops, 1000), 128 * 68);
    cr_assert_eq(ps_op_weight_bytes(m, 0, find_op(ffn, PS_OP_MATMUL, PS_ROLE_FFN_UP), 1000), 96 * 68);
    cr_assert_eq(ps_op_weight_bytes(m, 0, a, 5), 0);
    close_shape(&o);
}

/* Real files: every byte of the file's tensors is in exactly one shard, and what the file says is read. */
static void real_model(const char *file, void (*check)(const ps_model *)) {
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
    ps_model *m;
    ps_error e = {.status = PS_OK};
    char line[600];
    cr_assert_eq(ps_gguf_open(path, &g, &e), PS_OK, "%s", ps_error_format(&e, line, sizeof line));
    cr_assert_eq(ps_model_open(g, &m, &e), PS_OK, "%s", ps_error_format(&e, line, sizeof line));
    uint64_t sum = 0;
    for (uint32_t i = 0; i < m->n_shards; i++)
        sum += m->shards[i].weight_bytes;
    cr_assert_eq(sum, g->data_bytes);
    cr_assert_eq(m->weight_bytes, g->data_bytes);
    check(m);
    ps_model_close(m);
    ps_gguf_close(g);
}

static void check_smollm2(const ps_model *m) {
    cr_assert_str_eq(m->arch_name, "llama");
    cr_assert_eq(m->n_layers, 30);
    cr_assert_eq(m->n_params, 134515008);
    cr_assert_eq(m->weight_bytes, 96576768);
    cr_assert(m->tied_output && m->rope_factors == NULL && m->layers[0].window == 0);
    cr_assert(m->layers[29].n_head == 9 && m->layers[29].n_head_kv == 3 && m->layers[29].head_dim_k == 64);
    cr_assert_eq(m->layers[7].rope_base, 100000.0f);
    cr_assert_eq(m->layers[7].attn_scale, 0.125f);
}

static void check_gemma3(const ps_model *m) {
    cr_assert_str_eq(m->arch_name, "gemma3");
    cr_assert_eq(m->n_params, 268098176);
    cr_assert(m->tied_output && m->n_vocab == 262144 && m->n_ctx_train == 32768);
    cr_assert(m->layers[0].window == 512 && m->layers[5].window == 0 && m->layers[17].window == 0);
    cr_assert_eq(m->layers[0].w[PS_ROLE_FFN_DOWN]->type, PS_DTYPE_Q6_K);
    cr_assert_eq(m->layers[2].w[PS_ROLE_FFN_DOWN]->type, PS_DTYPE_Q4_K);
}

Test(model, real_smollm2) {
    real_model("SmolLM2-135M-Instruct.Q4_1.gguf", check_smollm2);
}

Test(model, real_gemma3) {
    real_model("gemma-3-270m-q4_k_m.gguf", check_gemma3);
}
