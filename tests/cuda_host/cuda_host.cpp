/* Lanes as fibres: see cuda_host.h. */
#include "cuda_host.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <vector>

#ifndef __x86_64__
#error "fibres are switched by a few lines of x86-64 assembler"
#endif

/* Leave the stack that runs, its pointer in *from, and go on with the one of `to`. */
extern "C" void ps_switch_stack(void **from, void *to);
__asm__(".text\n.globl ps_switch_stack\n.type ps_switch_stack,@function\nps_switch_stack:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size ps_switch_stack,.-ps_switch_stack\n");

namespace cuda_host {

place now;
dim3 block_size, grid_size;

namespace {

enum { MAX_LANES = 1024, STACK_BYTES = 96 << 10, SHARED_BYTES = 227 << 10, POISON = 0xA7 };

alignas(128) uint8_t shared_memory[SHARED_BYTES + 128];

struct copy {
    void *dst;
    const void *src;
    uint32_t bytes, group; /* group: number of commits before it */
};

struct lane_state {
    void *sp;
    bool ended;
    const uint64_t *round; /* waits until this is no longer `seen`; NULL: it may run */
    uint64_t seen;
    std::vector<copy> copies;
    uint32_t n_groups;
};

/* Lanes of a warp that do something together: those of `mask`. Values are kept for two rounds: nobody is two ahead. */
struct warp_meet {
    uint32_t mask, arrived;
    uint64_t round;
    cuda_host::slot slot[2][32];
};

struct {
    std::vector<lane_state> lanes;
    std::vector<std::vector<warp_meet *>> warps;
    uint8_t *stacks;
    void *scheduler;
    uint32_t n, current, n_live, n_arrived;
    uint64_t block_round;
    int brought[2];
    const std::function<void()> *body;
    uint64_t seed = 1;
} all;

lane_state &self() {
    return all.lanes[all.current];
}

void pass_on() {
    ps_switch_stack(&self().sp, all.scheduler);
}

void wait_for(const uint64_t *round, uint64_t seen) {
    self().round = round;
    self().seen = seen;
    pass_on();
}

void arrive(copy *c) {
    memset(c->dst, 0, 16);
    memcpy(c->dst, c->src, c->bytes);
}

void block_arrival() {
    if (all.n_live != 0 && all.n_arrived == all.n_live) {
        all.n_arrived = 0;
        all.block_round++;
        all.brought[(all.block_round + 1) & 1] = 0;
    }
}

void lane_main() {
    (*all.body)();
    lane_state &me = self();
    copies_wait(0);
    me.ended = true;
    all.n_live--;
    block_arrival(); /* who has ended is not waited for */
    pass_on();
    abort();
}

warp_meet &meet_of(uint32_t mask) {
    std::vector<warp_meet *> &of = all.warps[all.current / 32];
    for (warp_meet *m : of)
        if (m->mask == mask)
            return *m;
    of.push_back((warp_meet *)calloc(1, sizeof(warp_meet)));
    of.back()->mask = mask;
    return *of.back();
}

/* The lane's slot of a meeting; after `meet` those of all are there, and `done` has been called once with them. */
template <class DONE> int meet(warp_meet &m, DONE done) {
    const uint64_t round = m.round;
    m.arrived |= 1u << lane();
    if (m.arrived == m.mask) {
        done(m.slot[round & 1]);
        m.arrived = 0;
        m.round++;
    } else {
        wait_for(&m.round, round);
    }
    return (int)(round & 1);
}

float half_value(uint32_t h) {
    __half_raw raw;
    raw.x = (unsigned short)h;
    return __half2float(__half(raw));
}

void start_lane(uint32_t i) {
    uint8_t *top = all.stacks + (size_t)(i + 1) * STACK_BYTES;
    void **sp = (void **)top;
    *--sp = nullptr; /* as if lane_main had been called: the stack is 8 beside a multiple of 16 */
    *--sp = (void *)lane_main;
    for (int r = 0; r < 6; r++)
        *--sp = nullptr;
    all.lanes[i].sp = sp;
    all.lanes[i].ended = false;
    all.lanes[i].round = nullptr;
    all.lanes[i].copies.clear();
    all.lanes[i].n_groups = 0;
}

[[noreturn]] void stuck() {
    fprintf(stderr, "cuda_host: block %u,%u,%u: lanes wait for each other in vain:", now.block.x, now.block.y,
            now.block.z);
    for (uint32_t i = 0; i < all.n; i++)
        if (!all.lanes[i].ended)
            fprintf(stderr, " %u%s", i, all.lanes[i].round == &all.block_round ? "b" : "w");
    fprintf(stderr, " (b: at the block's barrier, w: in the warp)\n");
    exit(70);
}

/* A walk over n things that begins anywhere and goes either way. */
struct walk {
    uint32_t first, n;
    bool back;
    uint32_t at(uint32_t k) const {
        const uint32_t i = back ? first + n - k : first + k;
        return i < n ? i : i - n;
    }
};
walk any_walk(uint32_t n) {
    all.seed = all.seed * 6364136223846793005u + 1442695040888963407u;
    return {(uint32_t)(all.seed >> 33) % n, n, (bool)(all.seed >> 32 & 1)};
}

bool run_warp(uint32_t lane0) {
    for (bool any = false;; any = true) {
        bool moved = false;
        const walk lanes = any_walk(32);
        for (uint32_t k = 0; k < 32; k++) {
            const uint32_t i = lane0 + lanes.at(k);
            lane_state &l = all.lanes[i];
            if (l.ended || (l.round && *l.round == l.seen))
                continue;
            l.round = nullptr;
            all.current = i;
            now.thread =
                dim3(i % block_size.x, i / block_size.x % block_size.y, i / block_size.x / block_size.y);
            ps_switch_stack(&all.scheduler, l.sp);
            moved = true;
        }
        if (!moved)
            return any;
    }
}

void run_block() {
    memset(shared_memory, POISON, sizeof shared_memory);
    for (uint32_t i = 0; i < all.n; i++)
        start_lane(i);
    for (auto &of : all.warps)
        for (warp_meet *m : of)
            m->arrived = 0;
    all.n_live = all.n;
    all.n_arrived = 0;
    all.brought[0] = all.brought[1] = 0;
    /* Warps from any on, forwards or backwards; each goes on until its lanes wait for others. */
    while (all.n_live != 0) {
        bool moved = false;
        const walk warps = any_walk(all.n / 32);
        for (uint32_t k = 0; k < all.n / 32; k++)
            moved |= run_warp(warps.at(k) * 32);
        if (!moved)
            stuck();
    }
}

} // namespace

void *dynamic_shared() {
    return shared_memory;
}

void run(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &body) {
    all.n = block.x * block.y * block.z;
    if (all.n == 0 || all.n > MAX_LANES || all.n % 32 != 0 || shared_bytes > SHARED_BYTES) {
        fprintf(stderr, "cuda_host: a block of %u lanes and %zu bytes\n", all.n, shared_bytes);
        exit(70);
    }
    if (!all.stacks) {
        void *p = mmap(nullptr, (size_t)MAX_LANES * STACK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            exit(71);
        all.stacks = (uint8_t *)p;
        all.lanes.resize(MAX_LANES);
        all.warps.resize(MAX_LANES / 32);
    }
    block_size = block;
    grid_size = grid;
    all.body = &body;
    for (uint32_t z = 0; z < grid.z; z++)
        for (uint32_t y = 0; y < grid.y; y++)
            for (uint32_t x = 0; x < grid.x; x++) {
                now.block = dim3(x, y, z);
                run_block();
            }
}

int meet_block(int value) {
    const uint64_t round = all.block_round;
    all.brought[(round + 1) & 1] |= value;
    all.n_arrived++;
    const bool last = all.n_arrived == all.n_live;
    int result;
    if (last) {
        result = all.brought[(round + 1) & 1];
        all.n_arrived = 0;
        all.block_round++;
        all.brought[round & 1] = 0;
    } else {
        wait_for(&all.block_round, round);
        result = all.brought[(round + 1) & 1];
    }
    return result;
}

const slot *exchange(uint32_t mask, uint64_t value) {
    warp_meet &m = meet_of(mask);
    m.slot[m.round & 1][lane()].value = value;
    return m.slot[meet(m, [](auto &) {})];
}

void copy_later(void *dst, const void *src, uint32_t bytes) {
    if ((uintptr_t)dst % 16 || (bytes && (uintptr_t)src % 16) || bytes > 16) {
        fprintf(stderr, "cuda_host: a copy of %u bytes from %p to %p\n", bytes, src, dst);
        exit(70);
    }
    self().copies.push_back({dst, src, bytes, self().n_groups});
}

void copies_commit() {
    self().n_groups++;
}

void copies_wait(uint32_t n_under_way) {
    lane_state &me = self();
    size_t kept = 0;
    for (copy &c : me.copies)
        if (c.group + n_under_way < me.n_groups)
            arrive(&c);
        else
            me.copies[kept++] = c;
    me.copies.resize(kept);
}

void load_matrices(uint32_t (&r)[4], uint32_t address, bool transposed) {
    warp_meet &m = meet_of(0xffffffffu);
    m.slot[m.round & 1][lane()].value = address;
    const int at = meet(m, [transposed](auto &slot) {
        for (uint32_t l = 0; l < 32; l++)
            for (uint32_t k = 0; k < 4; k++) {
                const auto row = [&](uint32_t i) {
                    return (const uint16_t *)(uintptr_t)slot[8 * k + i].value;
                };
                const uint32_t g = l / 4, i = 2 * (l % 4);
                slot[l].word[k] = transposed ? row(i)[g] | (uint32_t)row(i + 1)[g] << 16
                                             : row(g)[i] | (uint32_t)row(g)[i + 1] << 16;
            }
    });
    memcpy(r, m.slot[at][lane()].word, sizeof r);
}

void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    warp_meet &m = meet_of(0xffffffffu);
    uint32_t *own = m.slot[m.round & 1][lane()].word;
    memcpy(own, a, 16);
    own[4] = b0, own[5] = b1;
    memcpy(own + 6, c, 16);
    const int at = meet(m, [](auto &slot) {
        float x[16][16], w[16][8];
        for (uint32_t l = 0; l < 32; l++)
            for (uint32_t e = 0; e < 2; e++) {
                const uint32_t g = l / 4, i = 2 * (l % 4) + e;
                const uint32_t *s = slot[l].word;
                for (uint32_t k = 0; k < 4; k++)
                    x[g + 8 * (k & 1)][i + 8 * (k >> 1)] = half_value(s[k] >> 16 * e & 0xffff);
                w[i][g] = half_value(s[4] >> 16 * e & 0xffff);
                w[i + 8][g] = half_value(s[5] >> 16 * e & 0xffff);
            }
        for (uint32_t l = 0; l < 32; l++)
            for (uint32_t k = 0; k < 4; k++) {
                float sum;
                memcpy(&sum, &slot[l].word[6 + k], 4);
                for (uint32_t i = 0; i < 16; i++)
                    sum = fmaf(x[l / 4 + 8 * (k >> 1)][i], w[i][2 * (l % 4) + (k & 1)], sum);
                memcpy(&slot[l].word[6 + k], &sum, 4);
            }
    });
    memcpy(c, &m.slot[at][lane()].word[6], 16);
}

} // namespace cuda_host
