/* Whole-file reads, read-only mappings, and atomic replacement. */
#ifndef PS_CORE_FILE_H
#define PS_CORE_FILE_H

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

/* Replace `path` by `size` bytes atomically: written to a temporary file beside it, synced, renamed.
 * On any error the old file is untouched and no temporary file is left.
 * Errors: PS_E_CANTCREATE, PS_E_PERM, PS_E_IO. */
ps_status ps_file_write_atomic(const char *path, const void *data, uint64_t size, ps_error *err);

#ifdef __cplusplus
}
#endif
#endif
