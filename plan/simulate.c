/* Discrete-event simulation of a program over the four queues: see simulate.h. */
#include "plan/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rounds of a block simulated before asking whether they repeat: the first is entered from another block. */
enum { FIRST_ROUNDS = 4 };
/* Two rounds are the same if they agree to this fraction of the period. */
static const double same_frac = 1e-9;

/* One expanded instruction. */
typedef struct event {
    uint32_t instr;
    uint32_t next; /* in its queue, or UINT32_MAX */
    bool nothing;  /* left out in this tile */
} event;

/* Expanded stream with at most `rounds` rounds per block. block_first: its first event of each block. */
typedef struct stream {
    uint32_t n;
    event *events;
    ps_sim_time *times;
    uint32_t *block_first; /* [n_blocks + 1] */
    uint32_t head[PS_QUEUE_COUNT];
} stream;

static uint32_t block_tiles(const ps_block *b, uint32_t n_tiles) {
    return b->over_tiles ? n_tiles : 1;
}

static void stream_free(stream *s) {
    free(s->events);
    free(s->times);
    free(s->block_first);
}

static ps_status stream_expand(const ps_sim *sim, uint32_t rounds, stream *s, ps_error *err) {
    const ps_program *p = sim->program;
    *s = (stream){0};
    uint64_t n = 0;
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        uint64_t r = p->blocks[b].n_layers < rounds ? p->blocks[b].n_layers : rounds;
        n += r * block_tiles(&p->blocks[b], sim->n_tiles) * p->blocks[b].n_instrs;
        if (n >= UINT32_MAX)
            return ps_error_set(err, PS_E_NOMEM, "simulation", "stream of more than 2^32 instructions");
    }
    s->events = calloc(n ? n : 1, sizeof *s->events);
    s->times = calloc(n ? n : 1, sizeof *s->times);
    s->block_first = calloc((uint64_t)p->n_blocks + 1, sizeof *s->block_first);
    if (!s->events || !s->times || !s->block_first)
        return ps_error_set(err, PS_E_NOMEM, "simulation", "no memory for %u instructions", (uint32_t)n);
    uint32_t last[PS_QUEUE_COUNT];
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        s->head[q] = last[q] = UINT32_MAX;
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        const ps_block *block = &p->blocks[b];
        uint32_t r = block->n_layers < rounds ? block->n_layers : rounds;
        s->block_first[b] = s->n;
        for (uint32_t i = 0; i < r * block_tiles(block, sim->n_tiles); i++)
            for (uint32_t k = 0; k < block->n_instrs; k++) {
                uint32_t id = block->instr0 + k;
                ps_queue q = p->instrs[id].queue;
                uint32_t n_tiles = block_tiles(block, sim->n_tiles);
                s->events[s->n] =
                    (event){id, UINT32_MAX,
                            block->over_tiles && !ps_instr_runs(&p->instrs[id], i % n_tiles, n_tiles)};
                if (last[q] == UINT32_MAX)
                    s->head[q] = s->n;
                else
                    s->events[last[q]].next = s->n;
                last[q] = s->n++;
            }
    }
    s->block_first[p->n_blocks] = s->n;
    return PS_OK;
}

/* A queue while the stream runs. */
typedef struct lane {
    uint32_t running, next; /* events; UINT32_MAX: none */
    uint32_t wait;          /* of next: those before this one have ended */
    double left;            /* work of the running event */
} lane;

/* Has all that the lane's next event waits for ended? What was found to have ended is not asked for again. */
static bool lane_ready(const ps_sim *sim, const stream *s, const bool *done, lane *l) {
    const ps_instr *in = &sim->program->instrs[s->events[l->next].instr];
    if (s->events[l->next].nothing)
        return true;
    for (; l->wait < in->n_waits; l->wait++) /* before the stream: nothing to wait for */
        if (in->wait[l->wait] <= l->next && !done[l->next - in->wait[l->wait]])
            return false;
    return true;
}

/* Run the stream: times of every event. */
static ps_status stream_run(const ps_sim *sim, stream *s, ps_error *err) {
    const ps_program *p = sim->program;
    bool *done = calloc(s->n ? s->n : 1, sizeof *done);
    if (!done)
        return ps_error_set(err, PS_E_NOMEM, "simulation", "no memory for %u instructions", s->n);
    ps_status status = PS_OK;
    lane lanes[PS_QUEUE_COUNT];
    const ps_instr *running[PS_QUEUE_COUNT] = {0};
    uint32_t n_done = 0;
    double now = sim->start_s;
    for (int q = 0; q < PS_QUEUE_COUNT; q++)
        lanes[q] = (lane){.running = UINT32_MAX, .next = s->head[q]};
    while (n_done < s->n) {
        double speed[PS_QUEUE_COUNT], need[PS_QUEUE_COUNT], step = INFINITY;
        uint32_t busy = 0;
        int last = 0;
        for (int q = 0; q < PS_QUEUE_COUNT; q++) {
            lane *l = &lanes[q];
            if (l->running == UINT32_MAX && l->next != UINT32_MAX && lane_ready(sim, s, done, l)) {
                const event *e = &s->events[l->next];
                l->running = l->next;
                l->next = e->next;
                l->wait = 0;
                l->left = e->nothing ? 0 : sim->work_s[e->instr];
                s->times[l->running].start_s = now;
                running[q] = &p->instrs[e->instr];
            }
            busy += running[q] != NULL;
            last = running[q] ? q : last;
        }
        if (!busy) { /* cannot happen: waits point backwards, so the first event not done is ready */
            status = ps_error_set(err, PS_E_INTERNAL, "simulation", "no queue can proceed");
            goto done;
        }
        if (busy == 1 && sim->alone_is_idle) {
            lane *l = &lanes[last];
            now += l->left;
            s->times[l->running].end_s = now;
            done[l->running] = true;
            l->running = UINT32_MAX;
            running[last] = NULL;
            n_done++;
            continue;
        }
        for (int q = 0; q < PS_QUEUE_COUNT; q++)
            if (running[q]) {
                speed[q] = sim->speed ? sim->speed(sim->speed_ctx, running, (ps_queue)q) : 1;
                need[q] = speed[q] == 1 ? lanes[q].left : lanes[q].left / speed[q]; /* "nothing" has none */
                step = need[q] < step ? need[q] : step;
            }
        now += step;
        for (int q = 0; q < PS_QUEUE_COUNT; q++)
            if (running[q]) {
                lane *l = &lanes[q];
                if (need[q] <= step * (1 + 1e-15)) {
                    s->times[l->running].end_s = now;
                    done[l->running] = true;
                    l->running = UINT32_MAX;
                    running[q] = NULL;
                    n_done++;
                } else {
                    l->left -= step * speed[q];
                }
            }
    }
done:
    free(done);
    return status;
}

static ps_status check_work(const ps_sim *sim, ps_error *err) {
    for (uint32_t i = 0; i < sim->program->n_instrs; i++)
        if (!(sim->work_s[i] >= 0) || !isfinite(sim->work_s[i]))
            return ps_error_set(err, PS_E_USAGE, "simulation", "work of instruction %u is not a time", i);
    return PS_OK;
}

static double stream_end(const ps_sim *sim, const stream *s) {
    double end = sim->start_s;
    for (uint32_t i = 0; i < s->n; i++)
        end = s->times[i].end_s > end ? s->times[i].end_s : end;
    return end;
}

ps_status ps_simulate_all(const ps_sim *sim, ps_sim_time **out_times, uint64_t *out_n, double *out_end_s,
                          ps_error *err) {
    stream s = {0};
    ps_status status = check_work(sim, err);
    if (!status)
        status = stream_expand(sim, UINT32_MAX, &s, err);
    if (!status)
        status = stream_run(sim, &s, err);
    if (!status) {
        *out_end_s = stream_end(sim, &s);
        *out_n = s.n;
        *out_times = s.times;
        s.times = NULL;
    }
    stream_free(&s);
    return status;
}

static uint32_t kept_rounds(const ps_block *b, uint32_t rounds) {
    return b->n_layers < rounds ? b->n_layers : rounds;
}

/* Events of one round of a block. */
static uint32_t round_length(const ps_sim *sim, const ps_block *b) {
    return block_tiles(b, sim->n_tiles) * b->n_instrs;
}

static bool shifted(ps_sim_time a, ps_sim_time b, double by, double tolerance) {
    return fabs(b.start_s - a.start_s - by) <= tolerance && fabs(b.end_s - a.end_s - by) <= tolerance;
}

/* Whether the rounds left out of `s` can be skipped: in every block that was cut short the last three rounds are the
 * same but for a shift by the period, and `longer`, which has one round more in each of these blocks, differs from
 * `s` in nothing but that all that follows comes later by these periods. */
static bool rounds_repeat(const ps_sim *sim, const stream *s, const stream *longer, uint32_t rounds) {
    const ps_program *p = sim->program;
    double shift = 0, scale = stream_end(sim, longer);
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        const ps_block *block = &p->blocks[b];
        uint32_t r = kept_rounds(block, rounds), n = round_length(sim, block);
        const ps_sim_time *t = s->times + s->block_first[b], *u = longer->times + longer->block_first[b];
        double tolerance = same_frac * scale;
        for (uint32_t i = 0; i < r * n; i++)
            if (!shifted(t[i], u[i], shift, tolerance))
                return false;
        if (r == block->n_layers || n == 0)
            continue;
        double period = t[(r - 1) * n].start_s - t[(r - 2) * n].start_s;
        tolerance = same_frac * fabs(period) + 1e-15;
        for (uint32_t i = (r - 2) * n; i < r * n; i++)
            if (!shifted(t[i - n], t[i], period, tolerance))
                return false;
        for (uint32_t i = (r - 1) * n; i < r * n; i++)
            if (!shifted(t[i], u[i + n], shift + period, same_frac * scale))
                return false;
        shift += period;
    }
    return true;
}

/* Figures of the whole stream from the shortened one: the rounds left out push what follows back by their number of
 * periods. */
static void read_off(const ps_sim *sim, const stream *s, uint32_t rounds, ps_sim_time *instrs,
                     ps_sim_block *blocks, double *out_end_s) {
    const ps_program *p = sim->program;
    double shift = 0, end = sim->start_s;
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        const ps_block *block = &p->blocks[b];
        uint32_t r = kept_rounds(block, rounds), n = round_length(sim, block);
        const ps_sim_time *t = s->times + s->block_first[b];
        double first = INFINITY, last = INFINITY, first_end = 0, period = 0;
        if (r < block->n_layers && n > 0)
            period = t[(r - 1) * n].start_s - t[(r - 2) * n].start_s;
        double skipped = (block->n_layers - r) * period;
        for (uint32_t k = 0; k < block->n_instrs; k++)
            instrs[block->instr0 + k] = (ps_sim_time){t[k].start_s + shift, t[k].end_s + shift};
        for (uint32_t k = 0; k < n; k++) {
            double again = t[(r - 1) * n + k].start_s + skipped;
            first = t[k].start_s < first ? t[k].start_s : first;
            last = again < last ? again : last;
            first_end = t[k].end_s > first_end ? t[k].end_s : first_end;
        }
        for (uint32_t i = 0; i < r * n; i++) { /* the last round is the one whose end may matter */
            double at = t[i].end_s + shift + (i >= (r - 1) * n ? skipped : 0);
            end = at > end ? at : end;
        }
        blocks[b].start_s = n ? first + shift : 0;
        blocks[b].period_s = n == 0                ? 0
                             : block->n_layers > 1 ? (last - first) / (block->n_layers - 1)
                                                   : first_end - first;
        shift += skipped;
    }
    /* Blocks reach into each other, say by copies for the next one: of a block that runs once the time to the next counts. */
    for (uint32_t b = 0; b + 1 < p->n_blocks; b++)
        if (p->blocks[b].n_layers == 1)
            blocks[b].period_s = fmax(blocks[b + 1].start_s - blocks[b].start_s, 0);
    *out_end_s = end;
}

ps_status ps_simulate(const ps_sim *sim, ps_sim_time *instrs, ps_sim_block *blocks, double *out_end_s,
                      ps_error *err) {
    const ps_program *p = sim->program;
    stream s = {0}, longer = {0};
    ps_status status = check_work(sim, err);
    /* Enough rounds that no wait of a later block reaches over the rounds left out. */
    uint32_t most = 1, longest_wait = 0, shortest = UINT32_MAX;
    for (uint32_t i = 0; i < p->n_instrs; i++)
        for (uint32_t w = 0; w < p->instrs[i].n_waits; w++)
            longest_wait = p->instrs[i].wait[w] > longest_wait ? p->instrs[i].wait[w] : longest_wait;
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        most = p->blocks[b].n_layers > most ? p->blocks[b].n_layers : most;
        if (p->blocks[b].n_layers > 1 && p->blocks[b].n_instrs < shortest)
            shortest = p->blocks[b].n_instrs;
    }
    uint32_t reach = longest_wait / (shortest ? shortest : 1);
    uint32_t rounds = FIRST_ROUNDS + (reach < most ? reach : most);
    for (bool done = false; !status && !done; rounds = rounds > most / 2 ? most : rounds * 2) {
        done = rounds >= most; /* the whole stream */
        stream_free(&s);
        status = stream_expand(sim, rounds, &s, err);
        if (!status)
            status = stream_run(sim, &s, err);
        if (!status && !done) {
            stream_free(&longer);
            status = stream_expand(sim, rounds + 1, &longer, err);
            if (!status)
                status = stream_run(sim, &longer, err);
            done = !status && rounds_repeat(sim, &s, &longer, rounds);
        }
        if (!status && done)
            read_off(sim, &s, rounds, instrs, blocks, out_end_s);
    }
    stream_free(&s);
    stream_free(&longer);
    return status;
}
