/* The document loader: what it keeps, and what it refuses before it costs memory. */
#include <criterion/criterion.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schemas/yaml_doc.h"

static ps_status load(const char *text, ps_yaml_doc **doc, ps_error *err) {
    *err = (ps_error){0};
    return ps_yaml_load(text, strlen(text), "t", doc, err);
}

Test(yaml_doc, tree_with_places) {
    ps_yaml_doc *doc;
    ps_error err;
    cr_assert_eq(load("a: 1\nb:\n  - {c: x, d: \"y\"}\n  - [2.5, -3]\n", &doc, &err), PS_OK);
    const ps_yaml_node *root = ps_yaml_root(doc), *b = ps_yaml_find(root, "b");
    cr_assert_eq(root->n, 2);
    cr_assert_eq(b->n, 2);
    const ps_yaml_node *d = ps_yaml_find(b->first, "d");
    cr_assert_str_eq(d->text, "y");
    cr_assert_eq(d->line, 3);
    cr_assert_eq(d->column, 15);
    cr_assert_str_eq(d->key, "d");
    cr_assert_not(d->plain);
    const ps_yaml_node *two = b->first->next->first;
    double v;
    cr_assert_str_eq(two->key, "b");
    cr_assert_eq(ps_yaml_f64(doc, two, &v, &err), PS_OK);
    cr_assert_eq(v, 2.5);
    cr_assert_eq(ps_yaml_f64(doc, two->next, &v, &err), PS_OK);
    cr_assert_eq(v, -3);
    ps_yaml_free(doc);
}

Test(yaml_doc, json_is_read_too) {
    ps_yaml_doc *doc;
    ps_error err;
    uint64_t v;
    cr_assert_eq(load("{\"a\": {\"b\": [1, 2, 3], \"c\": true}, \"d\\u00e9\": null}", &doc, &err), PS_OK);
    const ps_yaml_node *list = ps_yaml_find(ps_yaml_find(ps_yaml_root(doc), "a"), "b");
    cr_assert_eq(list->n, 3);
    cr_assert_eq(ps_yaml_u64(doc, list->first->next, 10, &v, &err), PS_OK);
    cr_assert_eq(v, 2);
    cr_assert_not_null(ps_yaml_find(ps_yaml_root(doc), "d\xc3\xa9"));
    ps_yaml_free(doc);
}

Test(yaml_doc, refused) {
    static const char *const bad[] = {"",
                                      "# nothing\n",
                                      "a: 1\na: 2\n",
                                      "a: *x\n",
                                      "a: &x 1\n",
                                      "a: !t 1\n",
                                      "[a, b]: 1\n",
                                      "{a: b}: 1\n",
                                      "--- 1\n--- 2\n",
                                      "a: [1, 2\n",
                                      "a: \"x\n",
                                      "a: \"\\0\"\n",
                                      "a\tb: {\n",
                                      "\xef\xbf\xbe: 1\n",
                                      "a: \x01\n",
                                      "%TAG ! tag:x\n--- 1\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ps_yaml_doc *doc;
        ps_error err;
        cr_expect_eq(load(bad[i], &doc, &err), PS_E_DATA, "%s", bad[i]);
        cr_expect_null(doc);
        cr_expect_neq(err.message[0], '\0');
    }
}

Test(yaml_doc, depth_is_bounded) {
    char text[256] = "";
    ps_yaml_doc *doc;
    ps_error err;
    for (int i = 0; i < PS_YAML_MAX_DEPTH; i++)
        strcat(text, "[");
    for (int i = 0; i < PS_YAML_MAX_DEPTH; i++)
        strcat(text, "]");
    cr_assert_eq(load(text, &doc, &err), PS_OK);
    ps_yaml_free(doc);
    memmove(text + 1, text, strlen(text) + 1);
    strcat(text, "]");
    cr_assert_eq(load(text, &doc, &err), PS_E_DATA);
    cr_assert_str_eq(err.message, "nested too deeply");
}

Test(yaml_doc, keys_are_bounded) {
    char text[2048] = "";
    ps_yaml_doc *doc;
    ps_error err;
    for (int i = 0; i <= PS_YAML_MAX_KEYS; i++)
        sprintf(text + strlen(text), "k%d: 1\n", i);
    cr_assert_eq(load(text, &doc, &err), PS_E_DATA);
    cr_assert_str_eq(err.message, "too many keys in one mapping");
}

Test(yaml_doc, memory_is_bounded_by_the_text) {
    uint64_t n = 1 << 20;
    char *text = malloc(n);
    text[0] = '[';
    for (uint64_t i = 1; i < n - 1; i++) /* a mapping of one pair for every four bytes */
        text[i] = "a: ,"[(i - 1) % 4];
    text[n - 2] = ' ';
    text[n - 1] = ']';
    ps_yaml_doc *doc;
    ps_error err = {0};
    ps_status status = ps_yaml_load(text, n, "t", &doc, &err);
    cr_assert_eq(status, PS_E_DATA);
    cr_assert_str_eq(err.message, "too many values for the size of the file");
    free(text);
}

Test(yaml_doc, numbers_do_not_depend_on_the_locale) {
    ps_yaml_doc *doc;
    ps_error err;
    double v;
    (void)setlocale(LC_ALL, "de_DE.UTF-8"); /* where it is installed */
    cr_assert_eq(load("a: 1.5\nb: 1,5\n", &doc, &err), PS_OK);
    cr_assert_eq(ps_yaml_f64(doc, ps_yaml_find(ps_yaml_root(doc), "a"), &v, &err), PS_OK);
    cr_assert_eq(v, 1.5);
    cr_assert_eq(ps_yaml_f64(doc, ps_yaml_find(ps_yaml_root(doc), "b"), &v, &err), PS_E_DATA);
    ps_yaml_free(doc);
}

Test(yaml_doc, number_grammar) {
    static const struct {
        const char *text;
        bool ok;
    } cases[] = {{"0", true},    {"-0", true},     {"1e5", true},    {"1E+05", true}, {"0.1", true},
                 {"1.", false},  {".5", false},    {"+1", false},    {"01", false},   {"1e", false},
                 {"inf", false}, {"0x1p3", false}, {"1_000", false}, {"-e", false},   {"\"1\"", false},
                 {"''", false},  {"1e400", false}, {"[1]", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ps_yaml_doc *doc;
        ps_error err;
        double v;
        char text[32];
        snprintf(text, sizeof text, "a: %s\n", cases[i].text);
        cr_assert_eq(load(text, &doc, &err), PS_OK);
        cr_expect_eq(ps_yaml_f64(doc, ps_yaml_find(ps_yaml_root(doc), "a"), &v, &err) == PS_OK, cases[i].ok,
                     "%s", cases[i].text);
        ps_yaml_free(doc);
    }
}
