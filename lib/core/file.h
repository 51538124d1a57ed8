/* Whole-file reads, read-only mappings, and atomic replacement. */
#ifndef PS_CORE_FILE_H
#define PS_CORE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Read a whole regular file into memory from malloc; a NUL follows the last byte.
 * max_bytes: larger files are refused as PS_E_DATA. On PS_OK the caller frees *out_data.
 * Errors: PS_E_NOINPUT (missing, a directory), PS_E_PERM, PS_E_IO, PS_E_NOMEM, PS_E_DATA. */
ps_status ps_file_read(const char *path, uint64_t max_bytes, char **out_data, uint64_t *out_size,
                       ps_error *err);

/* A read-only private mapping of a regular file. An empty file maps to data == NULL, size == 0. */
typedef struct ps_file_map {
    const uint8_t *data;
    uint64_t size;
} ps_file_map;
ps_status ps_file_map_open(const char *path, ps_file_map *out, ps_error *err);
void ps_file_map_close(ps_file_map *map);

/* Do both paths lead to the same existing file, by whatever names and links? NULL paths lead nowhere. */
bool ps_file_is_same(const char *a, const char *b);

/* Is `path` free for an output that replaces a file? A device, pipe, socket or folder that is there already is refused
 * (PS_E_CANTCREATE): a rename would put a plain file in its place. So is a new file in a folder that is not there or takes none. */
ps_status ps_file_check_output(const char *path, ps_error *err);

/* A file that is being written and replaces what `path` leads to when it is complete. It has no name until then where the file
 * system allows that (O_TMPFILE), so that nothing is left of a process that is killed; else a temporary one beside the target. */
typedef struct ps_file_new {
    int fd; /* to write to, owned by this */
    char *target, *temp;
    bool named; /* a file of the name `temp` is there */
} ps_file_new;
/* Mode of the file that it replaces, or what the umask leaves. On an error nothing is held. Errors: PS_E_CANTCREATE, PS_E_PERM,
 * PS_E_NOMEM. */
ps_status ps_file_new_open(const char *path, ps_file_new *out, ps_error *err);
/* Sync it and put it in place; or, on an error, drop it. path: for the error. */
ps_status ps_file_new_commit(ps_file_new *file, const char *path, ps_error *err);
/* Close and forget it: the target is untouched. Also after any of the calls above. */
void ps_file_new_drop(ps_file_new *file);
/* The error of a write that failed with errno `e`: PS_E_IO where there is no room, or no more is allowed. */
ps_status ps_file_write_error(const char *path, int e, ps_error *err);

/* Replace `path` by `size` bytes atomically, as ps_file_new does: written, synced, put in place. A symbolic link stays
 * one: the file that it leads to is replaced. On any error the old file is untouched and no temporary file is left.
 * Errors: PS_E_CANTCREATE, PS_E_PERM, PS_E_IO. */
ps_status ps_file_write_atomic(const char *path, const void *data, uint64_t size, ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
