/* SPDX-License-Identifier: Apache-2.0 */
#include "kinema/kinema.h"

#define TEXT(x) TEXT_OF(x)
#define TEXT_OF(x) #x

const char *kn_version(void)
{
    return TEXT(KN_VERSION_MAJOR) "." TEXT(KN_VERSION_MINOR) "." TEXT(KN_VERSION_PATCH);
}
