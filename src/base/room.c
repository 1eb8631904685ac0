/* SPDX-License-Identifier: Apache-2.0 */
#include "base/room.h"

void *kni_room(enum kni_alloc_tag tag, void *array, size_t *have, size_t want, size_t item_bytes)
{
    size_t bytes;
    if (want <= *have)
        return array;
    kni_free(array);
    array = kni_mul_size(want, item_bytes, &bytes) ? kni_alloc(tag, bytes, 64) : NULL;
    *have = array ? want : 0;
    return array;
}

void *kni_room_keep(enum kni_alloc_tag tag, void *array, size_t *have, size_t want, size_t item_bytes)
{
    size_t room, bytes;
    if (want <= *have)
        return array;
    if (!kni_add_size(want, want / 2, &room) || !kni_mul_size(room, item_bytes, &bytes))
        return NULL;
    void *grown = kni_realloc(tag, array, bytes);
    if (grown)
        *have = room;
    return grown;
}
