/* What stays in VRAM. Besides small weights, which every level with a GPU holds, there are three kinds: attention layer by
 * layer; the head by rows; feed-forward blocks, a slice of columns (or some experts) of every layer in turn, so that layers
 * stay alike. A mix says how far each has gone, a path in which order they go. All levels of a plan follow one path, so that
 * a smaller level's pieces are the first of a larger one's; a level that is its plan's only one may leave some of a kind out. */
#ifndef PS_PLAN_RESIDENT_H
#define PS_PLAN_RESIDENT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/status.h"
#include "schemas/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How much of each kind. All bytes are set. */
typedef struct ps_resident_mix {
    uint32_t n_attn; /* layers, from the first on */
    uint32_t n_head; /* steps of rows */
    uint64_t n_ffn;  /* slices, of the layer with the fewest at a time */
} ps_resident_mix;

/* Paths: so many quarters of attention's layers go before the feed-forward blocks, the others behind them; the head goes first (0),
 * before the feed-forward blocks (1), last (2) or not at all (3); four paths for each number of quarters, in the order 1, 0, 2,
 * 3. X(NAME, quarters, head, "name") */
#define PS_PATH_LIST(X)                                                                                      \
    X(ALL_ATTN_HEAD_NEXT, 4, 1, "attention, head, feed-forward")                                             \
    X(ALL_ATTN_HEAD_FIRST, 4, 0, "head, attention, feed-forward")                                            \
    X(ALL_ATTN_HEAD_LAST, 4, 2, "attention, feed-forward, head")                                             \
    X(ALL_ATTN_NO_HEAD, 4, 3, "attention, feed-forward")                                                     \
    X(MOST_ATTN_HEAD_NEXT, 3, 1, "three quarters of attention, head, feed-forward, more attention")          \
    X(MOST_ATTN_HEAD_FIRST, 3, 0, "head, three quarters of attention, feed-forward, more attention")         \
    X(MOST_ATTN_HEAD_LAST, 3, 2, "three quarters of attention, feed-forward, more attention, head")          \
    X(MOST_ATTN_NO_HEAD, 3, 3, "three quarters of attention, feed-forward, more attention")                  \
    X(HALF_ATTN_HEAD_NEXT, 2, 1, "half of attention, head, feed-forward, more attention")                    \
    X(HALF_ATTN_HEAD_FIRST, 2, 0, "head, half of attention, feed-forward, more attention")                   \
    X(HALF_ATTN_HEAD_LAST, 2, 2, "half of attention, feed-forward, more attention, head")                    \
    X(HALF_ATTN_NO_HEAD, 2, 3, "half of attention, feed-forward, more attention")                            \
    X(SOME_ATTN_HEAD_NEXT, 1, 1, "a quarter of attention, head, feed-forward, more attention")               \
    X(SOME_ATTN_HEAD_FIRST, 1, 0, "head, a quarter of attention, feed-forward, more attention")              \
    X(SOME_ATTN_HEAD_LAST, 1, 2, "a quarter of attention, feed-forward, more attention, head")               \
    X(SOME_ATTN_NO_HEAD, 1, 3, "a quarter of attention, feed-forward, more attention")                       \
    X(NO_ATTN_HEAD_NEXT, 0, 1, "head, feed-forward, attention")                                              \
    X(NO_ATTN_HEAD_FIRST, 0, 0, "head, feed-forward, attention")                                             \
    X(NO_ATTN_HEAD_LAST, 0, 2, "feed-forward, attention, head")                                              \
    X(NO_ATTN_NO_HEAD, 0, 3, "feed-forward, attention")
typedef enum ps_path {
#define PS_PATH_ENUM(name, quarters, head, text) PS_PATH_##name,
    PS_PATH_LIST(PS_PATH_ENUM)
#undef PS_PATH_ENUM
        PS_PATH_COUNT
} ps_path;
enum { PS_PATH_HEADS = 4 };
const char *ps_path_name(ps_path path);

/* Homes of KV caches: VRAM for that of layers whose attention is resident; of as many as fit, before any weights; of half of
 * the layers; of none. X(NAME, "name") */
#define PS_KV_POLICY_LIST(X)                                                                                 \
    X(WITH_ATTN, "with attention")                                                                           \
    X(FIRST, "before weights")                                                                               \
    X(HALF, "half, before weights")                                                                          \
    X(NONE, "hos"                                                                                            \
            "t")
typedef enum ps_kv_policy {
#define PS_KV_POLICY_ENUM(name, text) PS_KV_POLICY_##name,
    PS_KV_POLICY_LIST(PS_KV_POLICY_ENUM)
#undef PS_KV_POLICY_ENUM
        PS_KV_POLICY_COUNT
} ps_kv_policy;
const char *ps_kv_policy_name(ps_kv_policy policy);

/* What is resident. */
typedef struct ps_resident_set {
    const ps_model *model; /* borrowed */
    uint32_t n, room;
    ps_resident *pieces; /* from malloc; ascending offset */
    uint64_t bytes;      /* end of the last piece */
    bool small;          /* small weights are in */
    ps_resident_mix mix;
    uint32_t n_attn; /* layers whose attention is */
    uint64_t head_rows;
    uint64_t *ffn; /* [n_layers] hidden columns or experts, from the first on; from malloc */
} ps_resident_set;

/* Empty set. Errors: PS_E_NOMEM. */
ps_status ps_resident_init(ps_resident_set *set, const ps_model *model, ps_error *err);
void ps_resident_free(ps_resident_set *set);
/* Another of the same. Errors: PS_E_NOMEM. */
ps_status ps_resident_copy(const ps_resident_set *set, ps_resident_set *out, ps_error *err);
/* Add what the set has less of than the mix. What one call adds of a matrix is one piece. Errors: PS_E_NOMEM. */
ps_status ps_resident_grow(ps_resident_set *set, const ps_resident_mix *mix, ps_error *err);

/* Sizes that mixes are made of, found once for a model. */
typedef struct ps_resident_units {
    const ps_model *model; /* borrowed */
    uint64_t small_bytes;
    uint64_t *attn_bytes; /* [n_layers] */
    uint32_t n_head;
    uint64_t *head_bytes; /* [n_head] */
    uint64_t n_ffn;
    uint64_t *ffn_bytes; /* [n_ffn] in the order in which they become resident */
} ps_resident_units;
/* From arena. Errors: PS_E_NOMEM. */
ps_status ps_resident_units_of(const ps_model *model, ps_arena *arena, ps_resident_units *out, ps_error *err);

/* Room for weights and caches: both together at most room_bytes, each rounded up to multiples of PS_VRAM_ALIGN, the caches
 * together with work_bytes. kv_bytes: [n_layers] of all sequences, aligned. */
typedef struct ps_resident_room {
    uint64_t room_bytes, work_bytes;
    const uint64_t *kv_bytes;
} ps_resident_room;
/* The furthest mix on the path that fits; *out_kv: layers, from the first on, whose cache is in VRAM. left_out: of each kind so
 * much never becomes resident, and what the path has behind it goes on. False: not even the small weights fit. */
bool ps_resident_fill(const ps_resident_units *units, ps_path path, ps_kv_policy kv,
                      const ps_resident_mix *left_out, const ps_resident_room *room, ps_resident_mix *out,
                      uint32_t *out_kv);

/* Bytes of the small weights, which every level with a GPU needs; of a layer's attention matrices. */
uint64_t ps_resident_small_bytes(const ps_model *model);
uint64_t ps_resident_attn_bytes(const ps_model *model, uint32_t layer);
/* A weight that is small: norms, biases, routers, rope factors. */
bool ps_resident_is_small(ps_role role);
/* Columns at which a layer's feed-forward block may be cut; 0: not at all. */
uint64_t ps_ffn_step(const ps_model *model, uint32_t layer);

#ifdef __cplusplus
}
#endif
#endif
