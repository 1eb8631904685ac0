#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every check of tools/check accepts a clean tree and refuses one with a violation of its rule, naming the file.
set -euo pipefail
source_dir=${KN_SOURCE:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
check=$source_dir/tools/check
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
covered=

fresh() { # a small clean tree in $tree
  tree=$work/tree
  rm -rf "$tree"
  mkdir -p "$tree"/{src/base,src/kv,src/codec/x86,include/kinema,app,bench,doc,tools,build}
  printf 'base:\nkv: base\ncodec: base\nmystery: base\n' >"$tree/doc/layers.txt"
  printf '/* SPDX-License-Identifier: Apache-2.0 */\n#ifndef KNI_ONE_H\n#define KNI_ONE_H\nint kni_one(void);\n#endif\n' >"$tree/src/base/one.h"
  printf '/* SPDX-License-Identifier: Apache-2.0 */\n#include "base/one.h"\nint kni_one(void)\n{\n    return 1; /* not sprintf( nor malloc( */\n}\n' >"$tree/src/base/one.c"
  printf '/* SPDX-License-Identifier: Apache-2.0 */\n#include "base/one.h"\nint kni_two(void);\nint kni_two(void)\n{\n    return kni_one() + 1;\n}\n' >"$tree/src/kv/two.c"
  printf '/* SPDX-License-Identifier: Apache-2.0 */\n#ifndef KINEMA_THREE_H\n#define KINEMA_THREE_H\nint kn_three(void);\n#endif\n' >"$tree/include/kinema/three.h"
  for f in base kv codec; do printf '# %s\n' $f >"$tree/src/$f/README.md"; done
}

objects() { # builds the tree's library as the real build names it
  (cd "$tree" && gcc -Isrc -fPIC -c src/base/one.c -o build/one.o && gcc -Isrc -fPIC -c src/kv/two.c -o build/two.o &&
    echo 'int kn_three(void); int kn_three(void) { return 3; }' >build/three.c && gcc -fPIC -fvisibility=default -c build/three.c -o build/three.o &&
    gcc -fPIC -shared build/three.o "$@" -o build/libkinema.so && rm -f build/libkinema.a && ar rc build/libkinema.a build/*.o)
}

passes() { # name
  if ! out=$("$check" --root "$tree" --only "$1" 2>&1); then
    echo "FAIL $1: refuses a clean tree: $out"
    failures=$((failures + 1))
  fi
}

refuses() { # name, text that the message must hold, what was wrong
  covered="$covered $1"
  local status=0
  out=$("$check" --root "$tree" --only "$1" 2>&1) || status=$?
  if [ $status -ne 1 ] || ! grep -qF -- "$2" <<<"$out"; then
    echo "FAIL $1: $3: status $status, wanted 1 and \"$2\" in: $out"
    failures=$((failures + 1))
  fi
}

add() { # file, line: appends to a file that begins with the SPDX line
  [ -f "$tree/$1" ] || printf '/* SPDX-License-Identifier: Apache-2.0 */\n' >"$tree/$1"
  printf '%s\n' "$2" >>"$tree/$1"
}

fresh
objects
for name in $("$check" --list); do passes "$name"; done

fresh; printf 'int x;\n' >"$tree/src/base/bare.c"; refuses spdx src/base/bare.c "no SPDX line"
fresh; for _ in $(seq 601); do add src/base/long.c '/* */'; done; refuses length src/base/long.c "too long"
fresh; add src/kv/one.h ''; refuses names one.h "same name twice"
fresh; add src/kv/Two.c ''; refuses names Two.c "not snake case"
fresh; head -c 1100000 /dev/zero >"$tree/big.bin"; refuses size big.bin "too big"
fresh; add src/kv/path.c "/* see /$(printf root)/x */"; refuses words src/kv/path.c:2 "path of a machine"
fresh; add src/kv/path.c "const char *p = \"/$(printf work)/main\";"; refuses words src/kv/path.c:2 "path of a machine"
for call in strcpy strcat sprintf atoi strtok gets alloca; do
  fresh; add src/kv/call.c "void f(char *a) { $call(a); }"; refuses banned src/kv/call.c:2 "$call"
done
for call in 'printf("x")' 'exit(1)' 'getenv("x")' 'fputs("x", stderr)'; do
  fresh; add src/kv/loud.c "void f(void) { $call; }"; refuses silent src/kv/loud.c:2 "$call"
done
for call in 'malloc(1)' 'calloc(1, 1)' 'realloc(p, 1)' 'strdup(p)'; do
  fresh; add src/kv/heap.c "void *f(void *p) { return $call; }"; refuses alloc src/kv/heap.c:2 "$call"
done
fresh; add src/kv/named.h 'typedef struct named named;'; refuses typedef src/kv/named.h:2 "typedef of a struct"
fresh; add src/kv/macro.h '#define MIN(a, b) ((a) < (b) ? (a) : (b))'; refuses macros src/kv/macro.h:2 "macro without a prefix"
fresh; add src/kv/gpu.c '#include <cuda_runtime.h>'; refuses placement src/kv/gpu.c:2 "CUDA outside cuda/"
fresh; add src/kv/net.c '#include <sys/socket.h>'; refuses placement src/kv/net.c:2 "socket in kv"
fresh; add bench/load2.c '#include <curl/curl.h>'; passes placement
fresh; add bench/load2.c '#include <sys/socket.h>'; refuses placement bench/load2.c:2 "socket in bench"
fresh; add src/kv/simd.c '#include <immintrin.h>'; refuses placement src/kv/simd.c:2 "intrinsics in kv"
fresh; add src/codec/x86/simd.c '#include <immintrin.h>'; refuses placement src/codec/x86/simd.c:2 "intrinsics in a file without a level"
fresh; add src/codec/x86/simd_avx2.c '#include <immintrin.h>'; passes placement
fresh; rm "$tree/src/kv/README.md"; refuses readme src/kv/README.md "no README"
fresh; for _ in $(seq 21); do echo x >>"$tree/src/kv/README.md"; done; refuses readme src/kv/README.md "README too long"
fresh; add src/base/up.c '#include "kv/pool.h"'; add src/kv/pool.h ''; refuses layers src/base/up.c:2 "base includes kv"
fresh; add src/base/up.c '#include "../kv/pool.h"'; add src/kv/pool.h ''; refuses layers src/base/up.c:2 "base includes kv by a relative path"
fresh; add app/tool.c '#include "base/one.h"'; refuses layers app/tool.c:2 "the app uses an internal header"
fresh; add app/tool.c '#include <kinema/three.h>'; passes layers
fresh; mkdir "$tree/src/other"; add src/other/x.c ''; refuses layers src/other/x.c "folder without a layer"
fresh; add src/kv/gone.c '#include "base/gone.h"'; refuses layers src/kv/gone.c:2 "include of a missing file"
fresh; add src/kv/needs.h 'size_t kni_needs(void);'; refuses headers src/kv/needs.h "does not compile alone"
fresh; add include/kinema/four.h 'int kn_class(int class);'; refuses headers include/kinema/four.h "is no C++"
fresh; echo 'int stray(void) { return 1; }' >>"$tree/src/kv/two.c"; objects; refuses symbols stray "global without a prefix"
fresh; objects build/one.o; refuses symbols kni_one "internal name exported"

# could not check is neither clean nor a violation
fresh
rm -rf "$tree/build"
status=0
"$check" --root "$tree" --only symbols >"$work/out" 2>&1 || status=$?
if [ $status -ne 2 ]; then
  echo "FAIL symbols: without a build the status is $status, wanted 2"
  failures=$((failures + 1))
fi

for name in $("$check" --list); do
  if ! grep -qw "$name" <<<"$covered"; then
    echo "FAIL $name: no violation is tried here"
    failures=$((failures + 1))
  fi
done
[ $failures -eq 0 ] && echo "all checks can fail"
exit $((failures > 0))
