# SPDX-License-Identifier: Apache-2.0
# Writes OUT, a C source with the commit of SOURCE, and leaves it untouched when nothing changed. Run at every build.
execute_process(COMMAND git -c safe.directory=* describe --always --dirty --abbrev=12 --exclude=* WORKING_DIRECTORY ${SOURCE}
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed OR NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "/* SPDX-License-Identifier: Apache-2.0 */
/* Generated at every build by tools/commit.cmake. */
#include \"app.h\"

const char kn_app_commit[] = \"${commit}\";
const char kn_app_source_dir[] = \"${SOURCE}\";
" @ONLY)
