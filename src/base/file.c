/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

static struct kni_file_stamp stamp_of(const struct stat *st)
{
    return (struct kni_file_stamp){.device = st->st_dev, .inode = st->st_ino, .n_bytes = (uint64_t)st->st_size,
                                   .mtime_ns = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec,
                                   .ctime_ns = (int64_t)st->st_ctim.tv_sec * 1000000000 + st->st_ctim.tv_nsec};
}

enum kn_status kni_file_map_open(struct kni_file_map *out, const char *path, struct kn_err *err)
{
    *out = (struct kni_file_map){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer must be refused, not waited for */
    if (fd < 0)
        return kni_err_set(err, errno == ENOENT ? KN_E_NOT_FOUND : KN_E_IO, "cannot open %s: %s", path, strerror(errno));
    struct stat st;
    enum kn_status status = KN_OK;
    if (fstat(fd, &st))
        status = kni_err_set(err, KN_E_IO, "cannot stat %s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        status = kni_err_set(err, KN_E_FORMAT, "%s is not a regular file", path);
    else if (st.st_size <= 0)
        status = kni_err_set(err, KN_E_FORMAT, "%s is empty", path);
    if (status == KN_OK) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            status = kni_err_set(err, KN_E_IO, "cannot map %s: %s", path, strerror(errno));
        else
            *out = (struct kni_file_map){.data = p, .n_bytes = (size_t)st.st_size, .fd = fd, .stamp = stamp_of(&st)};
    }
    if (status != KN_OK)
        close(fd);
    return status;
}

enum kn_status kni_file_map_stamp(const struct kni_file_map *map, struct kni_file_stamp *out)
{
    struct stat st;
    if (fstat(map->fd, &st))
        return KN_E_IO;
    *out = stamp_of(&st);
    return KN_OK;
}

enum kn_status kni_file_map_read(const struct kni_file_map *map, uint64_t at, void *out, size_t n_bytes)
{
    for (uint8_t *to = out; n_bytes;) {
        ssize_t n = pread(map->fd, to, n_bytes, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return KN_E_IO;
        to += n;
        at += (uint64_t)n;
        n_bytes -= (size_t)n;
    }
    return KN_OK;
}

void kni_file_map_release(const struct kni_file_map *map, const void *at, size_t n_bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), from = (size_t)at, to = from + n_bytes, end = (size_t)map->data + map->n_bytes;
    from = (from + page - 1) & ~(page - 1);
    to = to == end ? to : to & ~(page - 1); /* the file's last page may be a part of one */
    if (to > from)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

void kni_file_map_close(struct kni_file_map *map)
{
    if (map->data) {
        munmap((void *)(size_t)map->data, map->n_bytes);
        close(map->fd);
    }
    *map = (struct kni_file_map){0};
}

/* A new file beside the path. */
static int create_temp(const char *path, char *temp, size_t n)
{
    static _Atomic uint32_t count; /* names only: orders nothing */
    int fd;
    do
        snprintf(temp, n, "%s.%ld.%u.tmp", path, (long)getpid(), atomic_fetch_add_explicit(&count, 1, memory_order_relaxed));
    while ((fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) < 0 && errno == EEXIST);
    return fd;
}

enum kn_status kni_file_save_begin(struct kni_file_save *save, const char *path, struct kn_err *err)
{
    struct stat st;
    char real[PATH_MAX];
    bool there = !stat(path, &st);
    if (there && realpath(path, real)) /* a link stays, and what it leads to is replaced */
        path = real;
    *save = (struct kni_file_save){.temp_bytes = strlen(path) + 48};
    if (there && !S_ISREG(st.st_mode))
        return kni_err_set(err, KN_E_IO, "cannot write %s: it is there and is no regular file", path);
    if (there && access(path, W_OK))
        return kni_err_set(err, KN_E_IO, "cannot write %s: %s", path, strerror(errno));
    if (there)
        save->mode = (uint32_t)st.st_mode & 07777;
    save->path = kni_strdup(KNI_ALLOC_TAG_MISC, path);
    save->temp_path = kni_alloc(KNI_ALLOC_TAG_MISC, save->temp_bytes, 0);
    if (!save->path || !save->temp_path) {
        kni_file_save_end(save);
        return kni_err_set(err, KN_E_NOMEM, "no memory to write %s", path);
    }
    int fd = create_temp(path, save->temp_path, save->temp_bytes);
    if (fd < 0) {
        enum kn_status status = kni_err_set(err, KN_E_IO, "cannot write %s: %s; give a path in a folder that is there and may be written", path, strerror(errno));
        kni_file_save_end(save);
        return status;
    }
    close(fd);
    unlink(save->temp_path);
    return KN_OK;
}

enum kn_status kni_file_save_commit(struct kni_file_save *save, const void *data, size_t n_bytes, struct kn_err *err)
{
    const char *at = data;
    enum kn_status status = KN_OK;
    int fd = create_temp(save->path, save->temp_path, save->temp_bytes);
    bool ok = fd >= 0;
    for (ssize_t n; ok && n_bytes; at += n, n_bytes -= (size_t)n) {
        n = write(fd, at, n_bytes);
        if (n < 0 && errno == EINTR)
            n = 0;
        ok = n >= 0;
        if (!ok)
            break;
    }
    if (ok && save->mode)
        (void)!fchmod(fd, (mode_t)save->mode); /* where that fails the file has the mode of a new one */
    ok = ok && !fsync(fd) && !rename(save->temp_path, save->path);
    if (!ok) {
        status = kni_err_set(err, KN_E_IO, "cannot write %s: %s", save->path, strerror(errno));
        if (fd >= 0)
            unlink(save->temp_path);
    }
    if (fd >= 0)
        close(fd);
    kni_file_save_end(save);
    return status;
}

void kni_file_save_end(struct kni_file_save *save)
{
    kni_free(save->temp_path);
    kni_free(save->path);
    *save = (struct kni_file_save){0};
}
