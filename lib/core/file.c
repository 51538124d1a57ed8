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

#include "core/clock.h"

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

/* A file without a name in the folder of `target`; -1 where the file system or a missing /proc rules that out, with errno of a
 * failure, or 0. */
static int open_nameless(const char *target) {
    char *dir = parent_of(target), proc[40];
    if (dir == NULL) {
        errno = ENOMEM;
        return -1;
    }
    int fd = open(dir, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600), e = errno;
    free(dir);
    errno = e == EOPNOTSUPP || e == EISDIR || e == EINVAL || e == ENOENT ? 0 : e;
    if (fd < 0)
        return -1;
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", fd);
    if (access(proc, F_OK) == 0)
        return fd;
    close(fd);
    errno = 0;
    return -1;
}

static int give_mode(const ps_file_new *f) {
    struct stat st;
    mode_t mode = umask(0);
    umask(mode);
    mode = stat(f->target, &st) == 0 ? st.st_mode & 0777 : 0666 & ~mode;
    return fchmod(f->fd, mode) == 0 ? 0 : errno;
}

ps_status ps_file_new_open(const char *path, ps_file_new *out, ps_error *err) {
    *out = (ps_file_new){.fd = -1};
    ps_status status = ps_file_check_output(path, err);
    if (status != PS_OK)
        return status;
    char *real = malloc(PATH_MAX);
    int e = real == NULL ? ENOMEM : 0;
    const char *target = e == 0 ? realpath(path, real) : NULL;
    if (target == NULL && e == 0 && errno != ENOENT)
        e = errno;
    if (target == NULL)
        target = path; /* not there yet */
    size_t len = strlen(target);
    if (e == 0 && ((out->target = strdup(target)) == NULL || (out->temp = malloc(len + 8)) == NULL))
        e = ENOMEM;
    free(real);
    if (e == 0) {
        memcpy(out->temp, out->target, len);
        memcpy(out->temp + len, ".XXXXXX", 8);
        out->fd = open_nameless(out->target);
        if (out->fd < 0 && errno == 0) {
            out->fd = mkostemp(out->temp, O_CLOEXEC);
            out->named = out->fd >= 0;
        }
        e = out->fd < 0 ? errno : give_mode(out);
    }
    if (e == 0)
        return PS_OK;
    ps_file_new_drop(out);
    return ps_error_errno(err, PS_E_CANTCREATE, path, e, "cannot create");
}

/* Name a file that has none: the target's if nothing is there, else the temporary one. */
static int give_name(ps_file_new *f, bool *out_done) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz012345";
    char proc[40];
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", f->fd);
    *out_done = linkat(AT_FDCWD, proc, AT_FDCWD, f->target, AT_SYMLINK_FOLLOW) == 0;
    if (*out_done)
        return 0;
    uint64_t bits = ps_clock_ns() ^ ((uint64_t)getpid() << 20);
    for (int tries = 0; errno == EEXIST && tries < 100; tries++, bits += 0x9e3779b9) {
        for (size_t i = 0, at = strlen(f->temp) - 6; i < 6; i++)
            f->temp[at + i] = letters[bits >> (5 * i) & 31];
        if (linkat(AT_FDCWD, proc, AT_FDCWD, f->temp, AT_SYMLINK_FOLLOW) == 0) {
            f->named = true;
            return 0;
        }
    }
    return errno;
}

ps_status ps_file_new_commit(ps_file_new *f, const char *path, ps_error *err) {
    bool done = false;
    int e = fsync(f->fd) != 0 ? errno : 0;
    if (e == 0 && !f->named)
        e = give_name(f, &done);
    if (close(f->fd) != 0 && e == 0 && !done)
        e = errno;
    f->fd = -1;
    if (e == 0 && !done && rename(f->temp, f->target) != 0)
        e = errno;
    if (e == 0) {
        f->named = false;
        sync_parent(f->target);
    }
    ps_file_new_drop(f);
    return e == 0 ? PS_OK : ps_file_write_error(path, e, err);
}

void ps_file_new_drop(ps_file_new *f) {
    if (f->fd >= 0)
        close(f->fd);
    if (f->named)
        unlink(f->temp);
    free(f->temp);
    free(f->target);
    *f = (ps_file_new){.fd = -1};
}

/* A full disk, a limit or a failing device is an I/O error; anything else says that the file cannot be here. */
ps_status ps_file_write_error(const char *path, int e, ps_error *err) {
    ps_status fallback = e == ENOSPC || e == EIO || e == EDQUOT || e == EFBIG ? PS_E_IO : PS_E_CANTCREATE;
    return ps_error_errno(err, fallback, path, e, "cannot write");
}

ps_status ps_file_write_atomic(const char *path, const void *data, uint64_t size, ps_error *err) {
    ps_file_new f;
    ps_status status = ps_file_new_open(path, &f, err);
    if (status != PS_OK)
        return status;
    int e = write_all(f.fd, data, size);
    if (e == 0)
        return ps_file_new_commit(&f, path, err);
    ps_file_new_drop(&f);
    return ps_file_write_error(path, e, err);
}
