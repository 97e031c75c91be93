#!/usr/bin/env bash
# The rules that keep the house in order (docs/design.md, "Layers"). Prints each breach; exit status 1 if any.
# Usage: architecture_test.sh SOURCE_DIR
set -uo pipefail
cd "$1" || exit 2
failed=0
breach() { echo "breach: $1"; failed=1; }

sources() { find "$@" -name '*.h' -o -name '*.cc' | grep -v '/build/' | sort; }
components="shard storage runtime loader checkpoint convert"
rooms="bucket mend jobs reshape tiers"  # components in checkpoint/: a source of checkpoint/jobs/ is of jobs/ below
place() { [[ " $rooms " == *" $1 "* ]] && echo "checkpoint/$1" || echo "$1"; }
in_rooms="^checkpoint/(${rooms// /|})/"

# Each line has a file and one that it includes.
included=$(grep -HoE '^ *#include *[<"][^>"]+' $(sources $components tools bench examples python/src) |
  sed -E "s/: *#include *[<\"]/ /; s#$in_rooms#\\1/#")
# The same for tools and python/src, whose sources name each other without "shardwise/".
beside=$(awk '{ split($1, part, "/"); component = part[1] == "python" ? "python/src" : part[1]
  if ((component == "tools" || component == "python/src") && $2 !~ /^shardwise\// && $2 ~ /\.h$/) {
    file = component "/" $2
    if ((getline line < file) >= 0) print $1, "shardwise/" file
    close(file)
  } }' <<< "$included")
is_public() { [[ $1 == *.h && $1 != */detail/* ]] && [[ " $components $rooms " == *" ${1%%/*} "* ]]; }

# 1. Includes point down only.
# 2. detail/ is private: only its own component, tests and benchmarks see it.
# 5. Public headers include the standard library and public headers of shardwise, nothing else.
allowed_shard="shard"
allowed_storage="shard storage"
allowed_runtime="shard runtime"
allowed_loader="shard storage runtime loader"
allowed_checkpoint="shard storage runtime checkpoint"
allowed_bucket="shard storage runtime checkpoint bucket"
allowed_mend="shard storage runtime checkpoint mend"
allowed_jobs="shard storage runtime checkpoint bucket mend jobs"
allowed_reshape="shard storage runtime checkpoint jobs reshape"
allowed_tiers="shard storage runtime checkpoint mend jobs tiers"
allowed_convert="shard storage runtime checkpoint reshape convert"
# These are shared all the same: HDF5's one lock, whose header names <hdf5.h>, so it cannot be public; open files; numpy's
# headers; copies past the cache; the reader of JSON; and the maker of HDF5's bytes around data that we write.
shared_detail="checkpoint:storage/detail/hdf5.h loader:storage/detail/hdf5.h loader:storage/detail/hdf5_reader.h convert:storage/detail/hdf5_reader.h \
loader:storage/detail/npy_header.h convert:storage/detail/npy_header.h \
convert:checkpoint/detail/hdf5/plain_file.h \
checkpoint:storage/detail/open_files.h convert:storage/detail/open_files.h checkpoint:storage/detail/stream_copy.h \
checkpoint:storage/detail/json_reader.h convert:storage/detail/json_reader.h loader:storage/detail/json_reader.h \
mend:storage/detail/open_files.h bucket:storage/object/detail/parallel_requests.h loader:storage/object/detail/parallel_requests.h jobs:mend/detail/parity_writer.h \
jobs:bucket/detail/bucket_root.h jobs:bucket/detail/bucket_files.h \
reshape:jobs/detail/save/save_together.h reshape:jobs/detail/save/latest_step.h \
tiers:jobs/detail/internals.h tiers:jobs/detail/save/file_transfer.h tiers:jobs/detail/save/terms.h tiers:jobs/detail/save_queue.h \
python:jobs/detail/caller.h python:jobs/detail/save_turns.h tiers:mend/detail/chunk_finder.h tiers:mend/detail/chunk_mender.h"
# The bricks in checkpoint/detail/ that each room may use.
bricks_bucket="format read root"
bricks_mend="codec format parity read root"
bricks_jobs="format hdf5 lanes read record root write internals.h"
bricks_reshape="format lanes read root write"
bricks_tiers="format read record root internals.h"
is_brick() {  # is_brick ROOM HEADER
  local brick=${2#checkpoint/detail/} bricks=bricks_$1
  [[ $2 == checkpoint/detail/* && " ${!bricks:-} " == *" ${brick%%/*} "* ]]
}
while read -r file used; do
  own=${file%%/*} allowed=allowed_${file%%/*}
  if [[ $used == shardwise/* ]]; then
    component=${used#shardwise/} component=${component%%/*}
    [[ -z ${!allowed:-} || " ${!allowed} " == *" $component "* ]] ||
      breach "$file includes $component/, which is not below $own/"
    [[ ! ${used#shardwise/} =~ $in_rooms ]] || breach "$file includes $used, which has a shorter name, without checkpoint/"
    [[ $used != */detail/* || $component == "$own" || $own == bench ]] ||
      [[ " $shared_detail " == *" $own:${used#shardwise/} "* ]] || is_brick "$own" "${used#shardwise/}" ||
      breach "$file includes $component/detail/"
    # A base of deleted first guesses may be included: its comments show users the code to write.
    if is_public "$file" && [[ $used == */detail/* && $used != */detail/*_guesses.h ]]; then
      breach "public header $file includes a detail/ header"
    fi
  elif is_public "$file" && [[ $used == *[./]* ]]; then
    breach "public header $file includes $used"
  fi
done <<< "$included"

# 3. Every source and test file is in a target.
for component in $components $rooms tools; do
  folder=$(place "$component")
  for file in $(find "$folder" -name '*.cc'); do
    [[ $component != checkpoint || ! $file =~ $in_rooms ]] || continue
    grep -rqwF "${file#"$folder"/}" "$folder/CMakeLists.txt" ||
      { dir=$(dirname "$file"); grep -qswF "$(basename "$file")" "$dir/CMakeLists.txt"; } ||
      breach "$file is in no target"
  done
  for file in $(find "tests/$component" -name '*_test.cc' 2> /dev/null); do
    grep -qwF "$(basename "$file")" "tests/$component/CMakeLists.txt" || breach "$file is in no target"
  done
done
for file in $(find bench examples -name '*.cc'); do
  stem=$(basename "$file" .cc)
  grep -qE "\b$stem\b" "$(dirname "$file")/CMakeLists.txt" || breach "$file is in no target"
done

# 4. Each library only in its room (docs/design.md, "Dependencies"). Tests and benchmarks may use libraries that they test against.
room() {  # room LIBRARY INCLUDE-PATTERN PLACE-PATTERN
  while read -r file used; do
    if [[ $file != bench/* && $used =~ $2 && ! $file =~ $3 ]]; then
      breach "$file includes $1, which belongs to $3"
    fi
  done <<< "$included"
}
room TBB '^(oneapi/)?tbb/' '^runtime/parallel\.cc$'
room MPI '^mpi' '^runtime/process/mpi_transport\.cc$'
room OpenBLAS '^(cblas|openblas|f77blas)' '^runtime/gemm\.cc$'
room HDF5 '^(hdf5|H5)' '^(storage/detail/hdf5\.|checkpoint/(detail/(hdf5|write/shard_file)|plugin)[/.])'
room zstd '^(zstd|zdict)' '^checkpoint/(detail/codec/codec\.cc|plugin/)'
room xxHash '^(xxhash|xxh)' '^(storage/hash|runtime/process/detail/message)\.cc$'
room Highway '^hwy/' '^(storage/detail/stream_copy\.cc|checkpoint/detail/codec/(shuffle|zstd/plane_coder)\.cc|runtime/kernels/detail/((philox_blocks|reduce_floats|tile_f32)\.cc|f32_math-inl\.h))$'
room ISA-L '^isa-l' '^mend/detail/erasure_code\.cc$'
room libpng '^png' '^loader/detail/image/png_image\.cc$'
room libjpeg '^(jpeglib|jerror)' '^loader/detail/image/jpeg_image\.cc$'
room zlib '^zlib' '^(loader/|convert/detail/zip_member\.cc)'
room fmt '^fmt/' '\.cc$'
room libcurl '^curl/' '^storage/object/detail/http\.cc$'
room libcrypto '^openssl/' '^storage/object/detail/sigv4\.cc$'
room RapidJSON '^rapidjson/' '^(checkpoint/detail/format/json_document\.(h|cc)|storage/detail/json_reader\.cc)$'
room nlohmann-json '^nlohmann/' '^(tools|examples)/'
room CLI11 '^CLI/' '^(tools/(command_line|completion|options)\.|examples/)'
room '<execution>' '^execution$' '^$'

# 6. Sizes (never more than 300 lines a header, 600 a source, 800 a test, 30 files a folder), and no folder called util.
for file in $(sources $components tools bench examples python/src tests); do
  case $file in *_test.cc) most=800 ;; *.h) most=300 ;; *) most=600 ;; esac
  lines=$(wc -l < "$file")
  [ "$lines" -le $most ] || breach "$file has $lines lines, never more than $most"
done
for folder in $(find $components tools python/src -type d); do
  files=$(find "$folder" -maxdepth 1 -name '*.h' -o -maxdepth 1 -name '*.cc' | wc -l)
  [ "$files" -le 30 ] || breach "$folder has $files files, never more than 30"
done
[ -z "$(find $components tools tests bench examples -type d -name 'util*')" ] || breach "a folder called util"

# 7. Tests do not sleep and are not switched off; nobody leaves marks.
for file in $(sources tests); do
  ! grep -nE 'sleep_for|sleep_until|\busleep|GTEST_SKIP|DISABLED_' "$file" || breach "$file sleeps or is switched off"
done
for file in $(sources $components tools bench examples python/src tests); do
  ! grep -nE '\b(TODO|FIXME|XXX|HACK)\b' "$file" || breach "$file has an unfinished mark"
done

# 8. Inside a component, too, includes point one way: each part uses itself and the parts before it; parts joined by
# "|" stand side by side and do not see each other. A part is folders, each with all below it, and file names, joined by
# "+"; or "." for all other files that are in no folder but detail/.
order_shard=". notation|torus|plan view|host"
order_storage="detail/attributes+detail/hdf5+detail/page_cache . detail/open_files object/object_client object/detail/parallel_requests object/object_store object/detail object"
order_loader="detail/mix+detail/prefetch+detail/row_stretch+detail/scratch_memory+detail/sample_numbers+detail/store_error source+detail/source_tag+detail/read_frame+detail/common_fields+detail/copy_row detail/order order sources/file_options+sources/images detail/remote detail/files detail/image sources stages loader_options+loader_stats+placement detail/engine host_loader+loader+open_source+loader_state"
order_checkpoint="box_reader+read_options+save+steps+detail/host_reader detail/format detail/codec|detail/lanes|detail/hdf5|detail/root detail/read detail/write|detail/parity detail/record attempt|reader|verify+verify_report|staged_output detail/internals"
order_bucket="detail ."
order_mend="detail/erasure_code|detail/replacer|detail/chunk_finder|detail/chunk_mender detail/parity_file|detail/file_maker parity+detail/parity_writer repair+repair_report"
order_jobs="policies detail/policy detail/save detail/save_turns pending_save+detail/caller+detail/pending_state+detail/save_queue manager+detail/manager_impl+detail/internals save_together"
order_reshape="edits+detail/edits reshard+spec_rules+detail/reshard"
order_tiers="detail/inventory|detail/saved_tensors detail/mending tiers+detail"
order_convert="detail ."
order_runtime="parallel+stopwatch+timeline|process memory device+sharded_array program manual gemm|graph kernels ops spmd tensor+tracer+detail/tracer_impl nn"
order_tools="places usage+commands/python/import+commands/python/package+disk_use+foreign_format+output+launched+interrupt+compare+objects steps parse other_words bench|options commands completion command_line main"
order_python_src="bindings arrays value_class gil+work+python_source+call_ranks parts python_tensors errors|bucket|calls|compare|convert|loader|programs|read|records|save|save_turns|sharding|stages|tiers|verify module"
for component in $components $rooms tools python/src; do
  order=order_${component//\//_}
  [[ -n ${!order:-} ]] || continue
  breaches=$(awk -v component="$component" -v order="${!order}" '
    function part_of(file,    stem, names, n, i, k, rest) {  # its number in the list of parts; 0 if it is in none
      file = substr(file, length(component) + 2)
      stem = file; sub(/\.[^.\/]*$/, "", stem)
      for (i = 1; i <= parts; ++i) {
        if (part[i] == "." && (file !~ /\// || file ~ /^detail\//)) rest = i
        n = split(part[i], names, "+")
        for (k = 1; k <= n; ++k) if (stem == names[k] || index(file, names[k] "/") == 1) return i
      }
      return rest + 0
    }
    BEGIN {
      steps = split(order, step, " ")
      for (s = 1; s <= steps; ++s) {
        n = split(step[s], side, "|")
        for (k = 1; k <= n; ++k) { part[++parts] = side[k]; rank[parts] = s }
      }
    }
    index($1, component "/") == 1 && index($2, "shardwise/" component "/") == 1 {
      used = substr($2, 11); own = part_of($1); other = part_of(used)
      if (!own) print $1 " has no place in the order of " component "/: " order
      else if (rank[other] > rank[own] || (rank[other] == rank[own] && other != own))
        print $1 " includes " used ", which does not stand before it in " component "/"
    }' <<< "$included"$'\n'"$beside")
  while read -r line; do [[ -z $line ]] || breach "$line"; done <<< "$breaches"
done

# 9. Messages are in plain words: none begins with the name of a function or class ("axis_index: ..", "Devices::at: ..").
while read -r line; do
  [[ -z $line ]] || breach "$line begins a message with a name of the code"
done <<< "$(grep -nE '"([a-z]+(_[a-z0-9]+)+|[A-Z][a-z]+([A-Z][a-z]+)+|[A-Za-z]+(::[A-Za-z_]+)+)(\(\))?: ' \
  $(find $components tools -name '*.cc') | sed -E 's/^([^:]*:[0-9]*): */\1: /')"

# 10. What checkpoint/ and convert/ do to files goes through FileSystem (docs/design.md). Where a path leads is asked
# outside it, in the files of the list; lease.cc looks at /proc.
changes='(remove|remove_all|rename|copy|copy_file|create_director[a-z]*|create_[a-z]*link|resize_file|permissions|directory_iterator|recursive_directory_iterator)\('
looks='(canonical|weakly_canonical|exists|is_[a-z_]*|status|symlink_status|file_size|last_write_time|equivalent|read_symlink|space)\('
may_look='/(pin|stored_checkpoint|reshard|new_target|export_folder|model_source|safetensors_model)\.cc|/directory_state\.h'
for file in $(sources checkpoint convert); do
  ! grep -nE "(fs|std::filesystem)::$changes|[^a-z]o?i?fstream\b|::(fopen|opendir|unlink|mkdir)\(" "$file" ||
    breach "$file does something to files outside FileSystem"
  [[ $file == */lease.cc ]] || ! grep -nE '[^a-z_A-Z>):]::open\(' "$file" || breach "$file opens a file outside FileSystem"
  [[ $file == */lease.cc || /$file =~ $may_look ]] ||
    ! grep -nE "(fs|std::filesystem)::$looks|[^a-z_A-Z>):]::l?stat\(" "$file" ||
    breach "$file looks at a path outside FileSystem"
done

# 11. Workers never wait: no read, wait, lock or message inside a body that is given to an Executor: to parallel_for or
# run (runtime/parallel.h).
# Seen are the lines of the call itself, not those of functions that it calls.
while read -r line; do
  [[ -z $line ]] || breach "$line, inside a body that workers run"
done <<< "$(for file in $(find $components -name '*.cc' -o -name '*.h'); do
  awk -v file="$file" '
    /^ *\/\// { next }
    !depth && /(\.|->)parallel_for\(|executor(_|\(\))?(\.|->)run\(/ { depth = 0; inside = 1 }
    inside {
      text = $0
      if (text ~ /(\.|->)(read|read_[a-z_]+|write|wait|wait_for|receive|send|gather|all_gather|broadcast|lock|join)\(/ ||
          text ~ /(MutexLock|lock_guard|unique_lock|scoped_lock|Hdf5Lock)/)
        print file ":" NR ": " text
      n = gsub(/\(/, "(", text); m = gsub(/\)/, ")", text); depth += n - m
      if (depth <= 0) { depth = 0; inside = 0 }
    }' "$file"
done)"

# 12. What reads bytes from outside has a fuzz target: fuzz_targets.txt says which, and names nothing that is gone.
targets=tests/architecture/fuzz_targets.txt
readers=$(grep -rhoE '\b(read|parse|decode)_[a-z0-9_]+\(' --include='*.h' $components | tr -d '(' | sort -u)
for reader in $readers; do
  grep -qE "^$reader " $targets || breach "$reader has no line in $targets: which fuzz target gives it damaged bytes"
done
while read -r reader target reason; do
  [[ $reader != \#* ]] || continue
  grep -qx "$reader" <<< "$readers" || breach "$targets names $reader, which no header has"
  [[ $target == - && -n $reason ]] || [[ -f tests/fuzz/${target}_fuzz.cc ]] || breach "$targets names the target $target, which is not there"
done < $targets

# 13. Each public header has a user outside its component (a component, a command, Python, an example or a benchmark
# includes it, or a public header that has such a user), or header_users.txt says where its users are.
users=tests/architecture/header_users.txt
headers=$(find $components -name '*.h' -not -path '*/detail/*' | sort)
unused=$(awk -v headers="$(sed -E "s#$in_rooms#\1/#" <<< "$headers")" '
  function component_of(file) { sub(/\/.*/, "", file); return file }
  BEGIN { n = split(headers, header, "\n"); for (i = 1; i <= n; ++i) is_header[header[i]] = 1 }
  $2 ~ /^shardwise\// {
    used = substr($2, 11)
    if (component_of($1) != component_of(used)) has_user[used] = 1
    else if (is_header[$1]) { from[++edges] = $1; to[edges] = used }
  }
  END {
    for (more = 1; more;) {
      more = 0
      for (i = 1; i <= edges; ++i) if (has_user[from[i]] && !has_user[to[i]]) has_user[to[i]] = more = 1
    }
    for (i = 1; i <= n; ++i) if (!has_user[header[i]]) print header[i]
  }' <<< "$included")
for header in $unused; do
  grep -q "^$header " $users || breach "$header has no user outside ${header%%/*}/ and no line in $users"
done
while read -r header page word _; do
  [[ $header != \#* ]] || continue
  grep -qx "$header" <<< "$unused" || breach "$users names $header, which has a user or is not there"
  [[ -f $page ]] && grep -qwF "$word" "$page" || breach "$users says of $header that $page names $word; it does not"
done < $users

# 14. A public header whose comments name errors includes shard/error.h, so that catch (const Error&) compiles.
for header in $headers; do
  [[ $header == shard/error.h ]] || ! grep -qE '//.*\b[Tt]hrows\b' "$header" ||
    grep -q '^#include "shardwise/shard/error.h"' "$header" ||
    breach "$header names its errors and does not include shard/error.h"
done

# 15. No two components define a type of one name in one namespace: programs link both, and the linker keeps one
# destructor for the two. Namespaces called detail, jobs_detail and so on count as one: rooms use the names of others.
types=$(awk -v rooms="$in_rooms" '/^namespace [a-z:_]+ \{/ { space = $2 }
  /^namespace [a-z_]*detail \{/ { space = "shardwise::" $2 }
  /^}  \/\/ namespace [a-z_]*detail/ { space = "shardwise" }
  /^(struct|class|enum class) [A-Za-z0-9_]+[^;]*\{/ {
    name = $1 == "enum" ? $3 : $2
    component = FILENAME
    if (component ~ rooms) sub(/^checkpoint\//, "", component)
    sub(/\/.*/, "", component)
    sub(/[a-z_]*detail$/, "detail", space)
    print space "::" name, component
  }' $(find $components -name '*.h') | sort -u)
for type in $(cut -d' ' -f1 <<< "$types" | uniq -d); do
  breach "$type is a type in $(grep "^$type " <<< "$types" | cut -d' ' -f2 | paste -sd' ')"
done

# 16. A room's types are in its own namespaces, not in checkpoint/'s.
for room in $rooms; do
  for file in $(find "checkpoint/$room" -path '*/detail/*' -name '*.h'); do
    grep -qE "^namespace shardwise(::${room}_detail)? \{" "$file" || breach "$file is not in the namespace ${room}_detail"
  done
done

# 17. The counts that users feel do not grow: public headers, fields, methods.
while read -r line; do [[ -z $line ]] || breach "$line"; done <<< "$(/usr/bin/python3 tests/architecture/sizes.py tests/architecture/sizes.txt)"

# 18. Words that stop a reader do not grow.
while read -r line; do [[ -z $line ]] || breach "$line"; done <<< "$(/usr/bin/python3 tests/architecture/words.py tests/architecture/words.txt)"

# 19. The rooms of the Python package: their order, circles of imports, words of one file, sizes.
while read -r line; do [[ -z $line ]] || breach "$line"; done <<< "$(/usr/bin/python3 tests/architecture/python_rooms.py || echo python_rooms.py failed)"

exit $failed
