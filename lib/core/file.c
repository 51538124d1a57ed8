/* Whole-file reads, read-only mappings, and atomic replacement. */
#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Open a regular file and tell its size; a directory or device is refused by name. */
static ps_status open_regular(const char *path, int *out_fd, uint64_t *out_size, ps_error *err) {
    /* O_NONBLOCK: a named pipe must be refused below, not waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return ps_error_errno(err, PS_E_NOINPUT, path[0] != '\0' ? path : "''", errno, "cannot open");
    struct stat st;
    if (fstat(fd, &st) != 0) {
        int e = errno;
        close(fd);
        return ps_error_errno(err, PS_E_IO, path, e, "cannot stat");
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return ps_error_set(err, PS_E_NOINPUT, path,
                            S_ISDIR(st.st_mode) ? "is a directory, not a file" : "is not a regular file");
    }
    *out_fd = fd;
    *out_size = (uint64_t)st.st_size;
    return PS_OK;
}

ps_status ps_file_read(const char *path, uint64_t max_bytes, char **out_data, uint64_t *out_size,
                       ps_error *err) {
    int fd = -1;
    uint64_t size = 0;
    ps_status status = open_regular(path, &fd, &size, err);
    if (status != PS_OK)
        return status;
    char *data = NULL;
    uint64_t got = 0;
    if (size > max_bytes || size >= SIZE_MAX) {
        status = ps_error_set(err, PS_E_DATA, path, "is %llu bytes, more than the %llu allowed",
                              (unsigned long long)size, (unsigned long long)max_bytes);
        goto done;
    }
    data = malloc((size_t)size + 1);
    if (data == NULL) {
        status = ps_error_set(err, PS_E_NOMEM, path, "no memory for %llu bytes", (unsigned long long)size);
        goto done;
    }
    while (got < size) {
        ssize_t n = read(fd, data + got, (size_t)(size - got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            status = ps_error_errno(err, PS_E_IO, path, errno, "cannot read");
            goto done;
        }
        if (n == 0)
            break; /* the file shrank while being read: what was there is what counts */
        got += (uint64_t)n;
    }
    data[got] = '\0';
    *out_data = data;
    *out_size = got;
    data = NULL;
done:
    free(data);
    close(fd);
    return status;
}

ps_status ps_file_map_open(const char *path, ps_file_map *out, ps_error *err) {
    int fd = -1;
    uint64_t size = 0;
    ps_status status = open_regular(path, &fd, &size, err);
    if (status != PS_OK)
        return status;
    *out = (ps_file_map){NULL, 0};
    if (size != 0) {
        void *p = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            status = ps_error_errno(err, PS_E_OS, path, errno, "cannot map");
        else
            *out = (ps_file_map){p, size};
    }
    close(fd);
    return status;
}

void ps_file_map_close(ps_file_map *map) {
    if (map->data != NULL)
        munmap((void *)(uintptr_t)map->data, (size_t)map->size);
    *map = (ps_file_map){NULL, 0};
}

static int write_all(int fd, const char *data, uint64_t size) {
    while (size != 0) {
        ssize_t n = write(fd, data, size > (1u << 30) ? (1u << 30) : (size_t)size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno;
        data += n;
        size -= (uint64_t)n;
    }
    return 0;
}

/* From malloc; NULL: no memory. */
static char *parent_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash == NULL ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

/* Make the rename itself durable. Some file systems refuse fsync on a directory: not an error. */
static void sync_parent(const char *path) {
    char *dir = parent_of(path);
    if (dir == NULL)
        return;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(dir);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
}

bool ps_file_is_same(const char *a, const char *b) {
    struct stat x, y;
    return a != NULL && b != NULL && stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

ps_status ps_file_check_output(const char *path, ps_error *err) {
    struct stat st;
    if (path[0] == '\0')
        return ps_error_set(err, PS_E_CANTCREATE, "''", "is no name of a file");
    if (stat(path, &st) != 0) {
        char *dir = parent_of(path);
        int e = dir == NULL                     ? ENOMEM
                : stat(dir, &st) != 0           ? errno
                : !S_ISDIR(st.st_mode)          ? ENOTDIR
                : access(dir, W_OK | X_OK) != 0 ? errno
                                                : 0;
        free(dir);
        return e == 0 ? PS_OK : ps_error_errno(err, PS_E_CANTCREATE, path, e, "cannot create");
    }
    if (S_ISREG(st.st_mode))
        return PS_OK;
    return ps_error_set(err, PS_E_CANTCREATE, path,
                        S_ISDIR(st.st_mode) ? "cannot create: is a directory"
                                            : "cannot create: is not a regular file");
}

ps_status ps_file_write_atomic(const char *path, const void *data, uint64_t size, ps_error *err) {
    ps_status status = ps_file_check_output(path, err);
    if (status != PS_OK)
        return status;
    char *real = malloc(PATH_MAX);
    if (real == NULL)
        return ps_error_set(err, PS_E_NOMEM, path, "no memory");
    const char *target = realpath(path, real);
    if (target == NULL && errno != ENOENT) {
        int e = errno;
        free(real);
        return ps_error_errno(err, PS_E_CANTCREATE, path, e, "cannot create");
    }
    if (target == NULL)
        target = path; /* not there yet */
    size_t len = strlen(target);
    char *temp = malloc(len + 8);
    if (temp == NULL) {
        free(real);
        return ps_error_set(err, PS_E_NOMEM, path, "no memory");
    }
    memcpy(temp, target, len);
    memcpy(temp + len, ".XXXXXX", 8);
    int fd = mkostemp(temp, O_CLOEXEC);
    if (fd < 0) {
        int e = errno;
        free(temp);
        free(real);
        return ps_error_errno(err, PS_E_CANTCREATE, path, e, "cannot create");
    }
    /* Keep the mode of the file that is replaced; a new one gets the umask's default. */
    struct stat st;
    mode_t mode;
    if (stat(target, &st) == 0) {
        mode = st.st_mode & 0777;
    } else {
        mode_t mask = umask(0);
        umask(mask);
        mode = 0666 & ~mask;
    }
    int e = fchmod(fd, mode) != 0 ? errno : 0;
    if (e == 0)
        e = write_all(fd, data, size);
    if (e == 0 && fsync(fd) != 0)
        e = errno;
    if (close(fd) != 0 && e == 0)
        e = errno;
    if (e == 0 && rename(temp, target) != 0)
        e = errno;
    if (e != 0)
        unlink(temp);
    else
        sync_parent(target);
    free(temp);
    free(real);
    if (e == 0)
        return PS_OK;
    /* A full disk or a failing device is an I/O error; anything else says that the file cannot be here. */
    ps_status fallback = e == ENOSPC || e == EIO || e == EDQUOT ? PS_E_IO : PS_E_CANTCREATE;
    return ps_error_errno(err, fallback, path, e, "cannot write");
}
