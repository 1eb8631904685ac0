#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Options that would be ignored say so; ~ in a path is a home folder wherever it reaches the program, and never a folder called ~; every option and
# command that a message names exists.
# shellcheck source=test/e2e/e2e.sh
. "$(dirname "${BASH_SOURCE[0]}")/e2e.sh"
source_dir=${KN_SOURCE:?names the sources}
tiny=$source_dir/test/fuzz/corpus/gguf_fuzz/tiny_q4_0
cd "$work"

# ---- an option without what it belongs to
lost() { # TEXT, then a command line
  local text=$1
  shift
  expect 2 "$text" "$bin" "$@"
}
run=(run -m "$tiny" -p x -n 1)
for option in "--profile $work/missing" "--preset medium" "--preset exact" "--store-max 1G" "--store-ttl 1h" "--store-read-only" "--chunk-tokens 64" "--fetch-deadline 100" \
  "--preset tiles --levels 8" "--preset tiles --hevc-slices 2" "--kv-quality exact" "--kv-quality any"; do
  # shellcheck disable=SC2086
  lost "without a store: give --store" "${run[@]}" $option
done
store=(--store "lmdb:$work/none")
lost "--backend belongs to the presets" "${run[@]}" "${store[@]}" --backend rans
lost "--profile belongs to the presets" "${run[@]}" "${store[@]}" --profile "$work/missing" --preset exact
lost "--store-max is for what is written" "${run[@]}" "${store[@]}" --store-read-only --store-max 1G
lost "not both" "${run[@]}" -q -v
for option in "--profile missing" "--preset medium" "--store-max 1G" "--store-ttl 1h" "--store-read-only" "--chunk-tokens 64" "--fetch-deadline 100ms" "--fetch-queue inline" \
  "--fetch-pool-percent 10" "--kv-quality exact" "--kv-quality any"; do
  # shellcheck disable=SC2086
  lost "without a store: give --store" serve $option
done
lost "takes exact|fine|tiles|medium|small|any" serve "${store[@]}" --kv-quality default
lost "exact, fine, tiles, medium, small or any" "${run[@]}" "${store[@]}" --kv-quality default
for quality in exact fine tiles medium small any; do
  expect 0 "\"kv_quality\": \"$quality\"" "$bin" serve "${store[@]}" --kv-quality $quality --print-config
done
lost "profile belongs to the presets" serve "${store[@]}" --profile x --preset exact
lost "store-max is for what is written" serve "${store[@]}" --store-read-only --store-max 1G
lost "backend belongs to the presets" serve "${store[@]}" --backend hevc
for use in "ls --ttl 1h" "ls --all" "ls -o x" "stat --prefix kn1" "verify --max-bytes 1G" "gc --prefix kn1"; do
  # shellcheck disable=SC2086
  lost "has no effect on" store ${use%% *} "lmdb:$work/none" ${use#* }
done
text=(--text "$source_dir/README.md")
for use in "eval --facts 3" "eval --tokens 300" "eval --sample 256" "eval --levels 8" "eval --needle --prefix 256" "eval --needle --sample 256" "search --prefix 256" \
  "search --profile x" "search --only fine" "search --calibration x" "search --facts 3"; do
  # shellcheck disable=SC2086
  lost "has no effect on" codec $use "${text[@]}" -m "$tiny"
done
lost "names none of them" demo --presets exact --backend rans
lost "names none of them" demo --presets exact,tiles --profile x
lost "belong to video" demo --presets exact,fine --hevc-tools basic
lost "--peer-python has no effect" bench engine --peer-python x
lost "--peer-args has no effect" bench serve --peer-args x

# ---- what is harmless is said, unless -q
said() {
  local option=$1
  expect 0 "$2" "$bin" "${run[@]}" --raw $option
  expect 0 "" "$bin" "${run[@]}" --raw -q $option
  [ ! -s "$work/err" ] || fail "$option: said although -q: $(cat "$work/err")"
}
for option in "--top-k 4" "--top-p 0.5" "--min-p 0.5" "--seed 3"; do said "$option" "${option%% *} has no effect: without --temp"; done
for option in "--no-fetch" "--no-publish" "--salt x"; do said "$option" "${option%% *} has no effect: there is no --store"; done
said "--repeat-last 3" "--repeat-last has no effect"
expect 0 "" "$bin" "${run[@]}" --raw --temp 1 --seed 3 --top-k 4
[ ! -s "$work/err" ] || fail "said although heeded: $(cat "$work/err")"

# ---- more tokens than there are
head -c 500 "$source_dir/LICENSE" >"$work/short.txt"
expect 0 "has" "$bin" codec search --text "$work/short.txt" -m "$tiny" --tokens 100000
grep -q "short.txt has [0-9]* tokens and --tokens is 100000: the first [0-9]*, whole chunks of 256, are run" "$work/err" || fail "search beyond the text: $(cat "$work/err")"
"$bin" codec search --text "$work/short.txt" -m "$tiny" --tokens 100000 --json >"$work/out" 2>/dev/null
[ "$(json "$work/out" 'o["tokens"] % 256 == 0 and 256 <= o["tokens"] <= 512')" = true ] || fail "tokens of a search: $(cat "$work/out")"
expect 0 "max_tokens is 65536, but the model was made for" "$bin" profile build -m "$tiny" -o "$work/p.knp" --max-tokens 65536 "$source_dir/README.md" "$source_dir/tools/check"
printf 'a text and then \xff\xfe' >"$work/bad.txt"
expect 1 "byte 0xff at offset 16" "$bin" codec search --text "$work/bad.txt" -m "$tiny"

# ---- ~, as a shell would have it; somebody must not exist
export HOME=$work/home
mkdir -p "$HOME"
cp "$tiny" "$HOME/tiny.gguf"
cp "$work/p.knp" "$HOME/p.knp"
cp "$source_dir/README.md" "$HOME/long.md"
cp "$work/short.txt" "$HOME/text.md"
expect 0 "" "$bin" run --model='~/tiny.gguf' --file='~/text.md' --raw -n 1 --store='lmdb:~/store' --preset medium --profile='~/p.knp' --chunk-tokens 64
[ -e "$HOME/store/data.mdb" ] || fail "lmdb:~/store is not in the home folder"
expect 0 "chunks" "$bin" store ls 'lmdb:~/store'
: >"$HOME/orders"
expect 0 "chunks" "$bin" store stat --store='fault:~/orders:lmdb:~/store'
expect 0 "of 32" "$bin" profile show '~/p.knp'
expect 0 "of 32" "$bin" profile build --model='~/tiny.gguf' --out='~/q.knp' '~/long.md'
expect 0 "fingerprint" "$bin" model show --model='~/tiny.gguf'
expect 0 "tokens" "$bin" model tokenize -m "$tiny" --file='~/text.md'
expect 0 "smallest" "$bin" codec search --model='~/tiny.gguf' --text='~/text.md'
head -c 768 "$HOME/long.md" >"$HOME/raw"
expect 0 "1 picture" "$bin" codec encode --size 16x16 -o '~/video.h265' '~/raw'
expect 0 "1 picture" "$bin" codec decode --output='~/back' '~/video.h265'
cmp -s "$HOME/raw" "$HOME/back" || fail "~ of codec: other pictures"
expect 0 "16 x 16" "$bin" codec inspect '~/video.h265'
KINEMA_MODEL='~/tiny.gguf' expect 0 "" "$bin" run -p x -n 1 --raw
mkdir -p "$HOME/cache" && KINEMA_CACHE='~/cache' expect 1 "no model" "$bin" run -p x -n 1
KINEMA_MODEL="~nobody-of-this-name/m.gguf" expect 1 "no such user" "$bin" run -p x -n 1
echo '{"store": "lmdb:~/store", "model": "~/tiny.gguf", "profile": "~/p.knp", "port_file": "~/port"}' >"$HOME/config"
expect 0 "$HOME/store" "$bin" serve --config='~/config' --print-config
[ "$(json "$work/out" '[o["store"], o["model"], o["profile"], o["port_file"]]')" = "[\"lmdb:$HOME/store\", \"$HOME/tiny.gguf\", \"$HOME/p.knp\", \"$HOME/port\"]" ] || fail "serve: $(cat "$work/out")"
for path in '~nobody-of-this-name/x' ""; do
  expect 2 "" "$bin" run --model="$path" -p x
  expect 2 "" "$bin" run -m "$tiny" -p x --profile="$path" "${store[@]}"
  expect 2 "" "$bin" run -m "$tiny" -p x --file="$path"
  expect 2 "" "$bin" serve --model="$path" --print-config
  expect 2 "" "$bin" profile build -m "$tiny" -o "$path" "$HOME/text.md"
  expect 2 "" "$bin" codec eval -m "$path" --text "$HOME/text.md"
  expect 2 "" "$bin" bench engine -m "$path"
done
for command in encode decode inspect; do
  expect 2 "no such user" "$bin" codec $command '~nobody-of-this-name/x'
  expect 2 "is empty" "$bin" codec $command ""
done
expect 2 "no such user" "$bin" profile show '~nobody-of-this-name/x'
expect 2 "no such user" "$bin" profile build -m "$tiny" -o "$work/q.knp" '~nobody-of-this-name/x'
expect 2 "no such user" "$bin" store ls 'lmdb:~nobody-of-this-name/x'
expect 2 "no such user" "$bin" run -m "$tiny" -p x --store='lmdb:~nobody-of-this-name'
expect 1 "empty" "$bin" store gc lmdb:
expect 1 "empty" "$bin" run -m "$tiny" -p x -n 1 --raw --store lmdb:
HOME='' expect 2 "HOME is not set" "$bin" store gc 'lmdb:~'
expect 1 "other files" "$bin" store gc 'lmdb:~' # the home folder itself is no store
[ -z "$(find "$work" -name '~*')" ] || fail "there is a file called ~: $(find "$work" -name '~*')"

# ---- advice
"$source_dir/tools/check-advice" "$bin" >"$work/out" 2>&1 || fail "advice: $(cat "$work/out")"
finish
