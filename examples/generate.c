/* The runtime's C API from the outside: open a model and its plan, continue a text, print it.
 * Build: cc generate.c $(pkg-config --cflags --libs pinstripe)    Use: ./a.out MODEL.gguf PLAN 'text' [N] */
#include <pinstripe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const ps_error *err) {
    char line[600];
    fprintf(stderr, "%s\n", ps_error_format(err, line, sizeof line));
    return ps_status_exit_code(err->status);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: %s MODEL.gguf PLAN TEXT [TOKENS]\n", argv[0]);
        return 64;
    }
    ps_error err;
    ps_engine *engine;
    ps_engine_options options = {.model_path = argv[1], .plan_path = argv[2]};
    if (ps_engine_open(&options, &engine, &err) != PS_OK)
        return fail(&err);

    ps_session *session = NULL;
    ps_sampler_params sampling = {.temperature = 0, .top_p = 1};
    int32_t *prompt = NULL, token;
    uint64_t n_prompt;
    ps_status status = ps_session_new(engine, &sampling, &session, &err);
    if (status == PS_OK)
        status = ps_engine_encode(engine, argv[3], strlen(argv[3]), true, false, &prompt, &n_prompt, &err);
    ps_eval_item item = {.session = session, .tokens = prompt, .sampled = &token};
    if (status == PS_OK) {
        item.n_tokens = (uint32_t)n_prompt;
        status = ps_engine_eval(engine, &item, 1, &err);
    }
    int n = argc > 4 ? atoi(argv[4]) : 32;
    for (int i = 0; i < n && status == PS_OK && !ps_engine_is_end(engine, token); i++) {
        char piece[512];
        uint32_t len = ps_engine_piece(engine, token, piece, sizeof piece);
        fwrite(piece, 1, len < sizeof piece ? len : sizeof piece, stdout);
        int32_t next = token;
        item.tokens = &next;
        item.n_tokens = 1;
        status = ps_engine_eval(engine, &item, 1, &err);
    }
    putchar('\n');
    free(prompt);
    ps_session_free(session);
    ps_engine_close(engine);
    return status == PS_OK ? 0 : fail(&err);
}
