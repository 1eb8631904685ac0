/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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
            *out = (struct kni_file_map){.data = p, .n_bytes = (size_t)st.st_size};
    }
    close(fd);
    return status;
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
    if (map->data)
        munmap((void *)(size_t)map->data, map->n_bytes);
    *map = (struct kni_file_map){0};
}
