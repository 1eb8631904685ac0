#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/build-peers where the build for this very processor dies at its first token, played by stand-ins for pip, cmake and llama.cpp: it is
# built again without AMX, and the record says so, once and for later. And rivals that die under the benchmarks, with last words and without.
# shellcheck source=test/e2e/e2e.sh
. "$(dirname "${BASH_SOURCE[0]}")/e2e.sh"
source_dir=${KN_SOURCE:?names the sources}
real_python=$(command -v python3)
mkdir -p "$work/stand-ins" "$work/cache/models"
: >"$work/log"
# the model that build-peers tries: where tools/fetch-model looks for it in this cache
export KINEMA_CACHE=$work/cache
tried=$("$source_dir/tools/fetch-model" --path)
mkdir -p "$(dirname "$tried")"
: >"$tried"

# ---- llama.cpp, as a library: dies by $death where it is built as $dying says
cat >"$work/stand-ins/library" <<END
#!/bin/bash
here=\$(dirname "\$(dirname "\$0")")
case "\$*" in
  *"-m pip install"*)
    echo "library \$CMAKE_ARGS" >>"$work/log"
    case "\$CMAKE_ARGS" in *GGML_NATIVE=ON*) echo native ;; *) echo named ;; esac >"\$here/library.kind" ;;
  *"-m pip download"*)
    while [ "\$1" != -d ]; do shift; done
    mkdir -p "\$2/pack/llama/vendor/llama.cpp" && tar -czf "\$2/llama.tar.gz" -C "\$2/pack" llama && rm -r "\$2/pack" ;;
  *--version*) [ -e "\$here/library.kind" ] && echo stand-in ;;
  *peer_llamacpp.py*)
    kind=\$(cat "\$here/library.kind")
    if [[ " \$(cat "$work/dying") " = *" library-\$kind "* ]]; then kill -SEGV \$\$; fi
    printf '%s\n' '{"version": "stand-in", "system": ""}' '{}' '{"seconds": 1}' '{"seconds": 1}' '{}' ;;
esac
END
# ---- and as a server
cat >"$work/stand-ins/server" <<END
#!$real_python
import http.server, os, signal, sys
kind = open(sys.argv[0] + ".kind").read().strip()
if "--version" in sys.argv:
    sys.exit(0)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        if "server-" + kind in open("$work/dying").read().split():
            print("ggml: a last word", flush=True)
            os.kill(os.getpid(), signal.SIGILL)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"content": "x"}')
s = http.server.HTTPServer(("127.0.0.1", 0), Answer)
print(f"listening on http://127.0.0.1:{s.server_address[1]} ", flush=True)
s.serve_forever()
END
cat >"$work/stand-ins/python3" <<END
#!/bin/bash
if [ "\$1 \$2" = "-m venv" ]; then
  [ "\$3" = --help ] || { mkdir -p "\$3/bin" && cp "$work/stand-ins/library" "\$3/bin/python"; }
else
  exec "$real_python" "\$@"
fi
END
cat >"$work/stand-ins/cmake" <<END
#!/bin/bash
if [ "\$1" = --build ]; then
  mkdir -p "\$2/bin" && cp "$work/stand-ins/server" "\$2/bin/llama-server"
else
  echo "server \$*" >>"$work/log"
  case "\$*" in *GGML_NATIVE=ON*) echo native ;; *) echo named ;; esac >"$work/server.kind"
fi
END
cat >"$work/stand-ins/install" <<END
#!/bin/bash
/usr/bin/install "\$@" && cp "$work/server.kind" "\${@: -1}.kind"
END
chmod +x "$work"/stand-ins/*
printf 'flags\t\t: fpu avx avx2 fma f16c bmi2 sse4_2 avx512f avx512bw avx512vbmi avx512_vbmi2 avx512_vnni amx_tile amx_int8\n' >"$work/cpuinfo"
build_peers() { PATH=$work/stand-ins:$PATH KN_CPUINFO=$work/cpuinfo "$source_dir/tools/build-peers"; }
record() { json "$work/cache/peers/kinema-build.json" "$1"; }

# ---- nothing dies
echo >"$work/dying"
expect 0 "peers/bin/llama-server" build_peers
[ "$(grep -c 'GGML_NATIVE=ON' "$work/log")" = 2 ] && [ "$(wc -l <"$work/log")" = 2 ] || fail "builds: $(cat "$work/log")"
[ "$(record '[o["kind"], o["note"]]')" = '["native", "for this machine'\''s processor"]' ] || fail "record: $(record o)"
expect 0 "" build_peers
[ "$(wc -l <"$work/log")" = 2 ] || fail "what is there was built again"

# ---- an old build that dies, though --version is fine; then a server that does; then both kinds
for dying in library-native server-native; do
  echo "$dying" >"$work/dying"
  rm -rf "$work/cache/peers"
  : >"$work/log"
  expect 0 "building again without AMX" build_peers
  [ "$(grep -c 'GGML_NATIVE=OFF -DGGML_AMX_TILE=OFF -DGGML_AMX_INT8=OFF' "$work/log")" = 2 ] || fail "builds: $(cat "$work/log")"
  grep -q -- '-DGGML_AVX_VNNI=OFF -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=OFF' "$work/log" || fail "flags: $(cat "$work/log")"
  [ "$(record '[o["kind"], "without AMX" in o["note"]]')" = '["named", true]' ] || fail "record: $(record o)"
  case $dying in
    library*) record 'o["note"]' | grep -q "the library was ended by SIGSEGV and said nothing" || fail "record: $(record o)" ;;
    server*) record 'o["note"]' | grep -q "the server was ended by SIGILL, its last words: ggml: a last word" || fail "record: $(record o)" ;;
  esac
  n=$(wc -l <"$work/log")
  expect 0 "" build_peers
  [ "$(wc -l <"$work/log")" = "$n" ] || fail "a working build was built again"
  record 'o["note"]' | grep -q "failed" || fail "the reason is forgotten"
done
echo "library-native library-named" >"$work/dying"
rm -rf "$work/cache/peers"
expect 1 "there is no build of llama-cpp-python" build_peers

# ---- the benchmark's result says how the rival was built
echo "library-native" >"$work/dying"
rm -rf "$work/cache/peers"
expect 0 "" build_peers
cat >"$work/fake.py" <<'END'
import json, sys
print(json.dumps({"version": "fake", "system": ""}), flush=True)
for line in sys.stdin:
    print(json.dumps({"seconds": 1, "resident": 3, "peak": 3, "before": 1}), flush=True)
END
cat >"$work/cache/peers/bin/python" <<END
#!/bin/sh
exec $real_python "\$@"
END
engine=("$bin" bench engine -m "$model" -t 1 --rows prefill_24 --decode 1 --repeat 1 --peer llama.cpp)
expect 0 "built without AMX" "${engine[@]}" --peer-script "$work/fake.py"
expect 0 '"peer_build": {"kind": "named"' "${engine[@]}" --peer-script "$work/fake.py" --json

# ---- a rival that dies: its signal by name, and its last words where it had any
dies() { # TEXT CODE, at once and at the second order; nothing but what is true about last words
  printf 'import os, signal, sys\n%s\n' "$2" >"$work/dead.py"
  expect 1 "llama.cpp's process $1" "${engine[@]}" --peer-script "$work/dead.py"
  { printf 'import os, signal, sys\nprint("{}", flush=True)\nsys.stdin.readline()\nprint("{}", flush=True)\nsys.stdin.readline()\n%s\n' "$2"; } >"$work/dead.py"
  expect 1 "$1 in the middle of the measurement" "${engine[@]}" --peer-script "$work/dead.py"
}
dies "was ended by SIGSEGV (Segmentation fault)" 'os.kill(os.getpid(), signal.SIGSEGV)'
grep -q "it said nothing" "$work/err" && ! grep -q "above" "$work/err" || fail "words of one that said nothing: $(cat "$work/err")"
dies "was ended by SIGILL (Illegal instruction)" 'print("a last word", file=sys.stderr, flush=True); os.kill(os.getpid(), signal.SIGILL)'
grep -q "a last word" "$work/err" && grep -q "its last words are above" "$work/err" || fail "last words: $(cat "$work/err")"
dies "ended with status 3" 'sys.exit(3)'
grep -q "it said nothing" "$work/err" || fail "words of one that said nothing: $(cat "$work/err")"
# closes its answers and stays
printf 'import os, signal\nos.close(1)\nsignal.pause()\n' >"$work/dead.py"
expect 1 "was ended by SIGKILL" "${engine[@]}" --peer-script "$work/dead.py"

# ---- a rival server: before it serves, and under the load
serve=("$bin" bench serve -m "$model" -t 1 -c 512 --requests 2 --clients 1 --prompt-tokens 8 --max-tokens 2 --peer llama.cpp --peer-parallel 1)
printf '#!/bin/sh\nkill -SEGV $$\n' >"$work/rival" && chmod +x "$work/rival"
expect 1 "was ended by SIGSEGV (Segmentation fault) before it served; it said nothing" "${serve[@]}" --peer-server "$work/rival"
printf '#!/bin/sh\necho out of luck\nexit 4\n' >"$work/rival"
expect 1 "ended with status 4 before it served; its last words are above" "${serve[@]}" --peer-server "$work/rival"
grep -q "out of luck" "$work/err" || fail "last words of a server: $(cat "$work/err")"
cat >"$work/rival" <<END
#!$real_python
import http.server, os, signal
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")
    def do_POST(self):
        os.kill(os.getpid(), signal.SIGSEGV)
    def log_message(self, *_):
        pass
s = http.server.HTTPServer(("127.0.0.1", 0), Answer)
print(f"listening on http://127.0.0.1:{s.server_address[1]} ", flush=True)
s.serve_forever()
END
expect 1 "was ended by SIGSEGV (Segmentation fault) under the load" "${serve[@]}" --peer-server "$work/rival"
finish
