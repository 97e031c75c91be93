#!/usr/bin/env bash
# Plants one breach of each kind in a copy of the tree and sees that architecture_test.sh names it.
# Usage: breaches_test.sh SOURCE_DIR SCRATCH_DIR
set -uo pipefail
source_dir=$1 scratch=$2
rm -rf "$scratch" && mkdir -p "$scratch" || exit 2
(cd "$source_dir" && cp -r shard storage runtime loader checkpoint convert tools tests bench examples docs "$scratch" && mkdir "$scratch/python" && cp -r python/src python/shardwise "$scratch/python")
cd "$scratch" || exit 2

echo '#include "shardwise/runtime/device.h"' >> shard/box.cc
echo '#include "shardwise/checkpoint/detail/codec/codec.h"' >> loader/order.cc
echo '#include "shardwise/runtime/parallel.h"' >> storage/file.cc
echo '#include "shardwise/storage/detail/page_cache.h"' >> checkpoint/verify.cc
echo '#include "shardwise/checkpoint/detail/codec/codec.h"' >> convert/model.cc
echo 'int x;' > runtime/forgotten.cc
echo 'int x;' > tests/shard/forgotten_test.cc
echo '#include <tbb/tbb.h>' >> loader/loader.cc
echo '#include <curl/curl.h>' >> storage/object/s3_client.cc
echo '#include <zstd.h>' >> checkpoint/jobs/manager.cc
echo '#include <fmt/core.h>' >> shard/box.h
yes '//' | head -n 700 >> shard/mesh.cc
mkdir runtime/util
echo '#include "shardwise/shard/plan/detail/cover.h"' >> runtime/gemm.cc
echo '#include "shardwise/shard/view/explain.h"' >> shard/box_copy.cc
echo '#include "shardwise/shard/torus/hybrid_mesh.h"' >> shard/plan/transfer_plan.h
echo '#include "shardwise/shard/host/mutex.h"' >> shard/mesh.h
echo '#include "shardwise/runtime/manual.h"' >> runtime/program/detail/move.h
echo 'const char* text = "axis_index: no such axis";' >> shard/dims.cc
yes 'It begins anew.' | head -n 1000 > docs/anew.md
echo 'const char* text = "Devices::at: no such device";' >> tools/parse.cc
echo 'void f(const fs::path& path) { fs::remove_all(path); }' >> checkpoint/save.cc
echo 'bool g(const fs::path& path) { return fs::exists(path); }' >> convert/export_model.cc
echo '#include "shardwise/loader/detail/engine/ring.h"' >> loader/sources/npy.cc
echo '#include "shardwise/checkpoint/detail/write/part.h"' >> checkpoint/detail/read/chunk_reader.cc
echo '#include "shardwise/checkpoint/detail/record/packer.h"' >> checkpoint/detail/write/commit.cc
echo '#include "shardwise/jobs/manager.h"' >> checkpoint/jobs/detail/save/terms.h
echo '#include "shardwise/tiers/tiers.h"' >> checkpoint/reshape/reshard.cc
echo '#include "shardwise/jobs/manager.h"' >> checkpoint/mend/repair.cc
echo '#include "shardwise/checkpoint/mend/repair.h"' >> checkpoint/verify.cc
echo '#include "shardwise/jobs/detail/save/messages.h"' >> checkpoint/tiers/tiers.cc
echo '#include "shardwise/checkpoint/detail/codec/codec.h"' >> checkpoint/jobs/manager.cc
echo '#include <isa-l.h>' >> checkpoint/detail/parity/parity_format.cc
echo '#include "shardwise/reshape/reshard.h"' >> checkpoint/reshape/edits.cc
echo 'int x;' > checkpoint/tiers/detail/forgotten.cc
echo 'namespace shardwise::detail {' > checkpoint/mend/detail/astray.h
sed -i '/shard\/error\.h/d' checkpoint/mend/repair.h
echo '#pragma once' > checkpoint/reshape/unused.h
echo '#include "shardwise/runtime/process/detail/x.h"' >> python/src/read.cc
printf 'void f() {\n  executor.parallel_for(2, [&](std::int64_t i) {\n    const MutexLock lock(mutex);\n    reader->read(i);\n  });\n}\n' >> runtime/gemm.cc
printf 'void f() {\n  devices.executor().run(graph, [&](int task) {\n    file.write(task);\n  });\n}\n' >> runtime/program/redistribute.cc
printf 'void f() {\n  executor_->run(graph, [&](int task) {\n    channel->receive(task);\n  });\n}\n' >> runtime/program/detail/move.cc
echo 'int read_foreign_bytes(const char* bytes);' >> storage/file.h
echo 'read_nothing manifest' >> tests/architecture/fuzz_targets.txt
echo '#pragma once' > shard/unused.h
sed -i 's|^loader/sources/text.h .*|loader/sources/text.h docs/loader.md no_such_word|' tests/architecture/header_users.txt
echo '#include "parse.h"' >> tools/output.cc
sed -i '/shard\/error\.h/d' checkpoint/verify.h
echo '#include "work.h"' >> python/src/bindings.h
printf 'struct ChunkRecord {\n};\n' >> loader/detail/engine/ring.h
printf 'namespace shardwise::tiers_detail {\nstruct RootTerms {\n};\n' >> checkpoint/tiers/detail/inventory.h
sed -i 's/^struct ManagerOptions {/&\n  std::function<void(int, int)> more = nullptr;/; s/^class CheckpointManager {/&\n public:\n  void more();/' checkpoint/jobs/manager.h
for i in $(seq 31); do echo > shard/torus/part_$i.h; done
echo 'from ..torch import _save' >> python/shardwise/_checkpoint/verify.py
printf 'def late() -> None:\n    from .. import load\n' >> python/shardwise/_jobs/pending.py
echo 'from .manager import is_step' >> python/shardwise/_jobs/links.py
echo 'from .links import Links' >> python/shardwise/_jobs/manager.py
printf 'import linecache\nimport sys\nsys.modules, sys._getframe\nsetattr(torch, 1)\n' >> python/shardwise/_trees/values.py
echo > python/shardwise/_astray.py
for i in $(seq 20); do echo > python/shardwise/_programs/part_$i.py; done

found=$("$source_dir/tests/architecture/architecture_test.sh" "$scratch")
[ $? = 1 ] || { echo "the rules did not fail"; exit 1; }
status=0
for needed in 'shard/box.cc includes runtime/' 'loader/order.cc includes checkpoint/detail/' \
  'storage/file.cc includes runtime/' 'checkpoint/verify.cc includes storage/detail/' \
  'convert/model.cc includes checkpoint/detail/' 'runtime/forgotten.cc is in no target' 'tests/shard/forgotten_test.cc is in no target' \
  'storage/object/s3_client.cc includes libcurl' 'loader/loader.cc includes TBB' 'jobs/manager.cc includes zstd' \
  'public header shard/box.h includes fmt/core.h' 'shard/mesh.cc has' 'a folder called util' \
  'runtime/gemm.cc includes shard/detail/' \
  'shard/box_copy.cc includes shard/view/explain.h, which does not stand before it' \
  'shard/plan/transfer_plan.h includes shard/torus/hybrid_mesh.h, which does not stand before it' \
  'shard/mesh.h includes shard/host/mutex.h, which does not stand before it' \
  'runtime/program/detail/move.h includes runtime/manual.h, which does not stand before it' \
  'axis_index: no such axis"; begins a message' 'Devices::at: no such device"; begins a message' \
  'checkpoint/save.cc does something to files outside' 'convert/export_model.cc looks at a path outside' \
  'loader/sources/npy.cc includes loader/detail/engine/ring.h, which does not stand before it' \
  'checkpoint/detail/read/chunk_reader.cc includes checkpoint/detail/write/part.h, which does not stand before it' \
  'checkpoint/detail/write/commit.cc includes checkpoint/detail/record/packer.h, which does not stand before it' \
  'jobs/detail/save/terms.h includes jobs/manager.h, which does not stand before it' \
  'reshape/reshard.cc includes tiers/, which is not below reshape/' \
  'mend/repair.cc includes jobs/, which is not below mend/' \
  'checkpoint/verify.cc includes shardwise/checkpoint/mend/repair.h, which has a shorter name' \
  'tiers/tiers.cc includes jobs/detail/' 'jobs/manager.cc includes checkpoint/detail/' \
  'checkpoint/detail/parity/parity_format.cc includes ISA-L' \
  'reshape/edits.cc includes reshape/reshard.h, which does not stand before it' \
  'checkpoint/tiers/detail/forgotten.cc is in no target' 'astray.h is not in the namespace mend_detail' \
  'checkpoint/mend/repair.h names its errors' 'reshape/unused.h has no user outside reshape/' \
  'shardwise::detail::RootTerms is a type in jobs tiers' \
  'python/src/read.cc includes runtime/detail/' \
  'reader->read(i);, inside a body that workers run' 'const MutexLock lock(mutex);, inside a body that workers run' \
  'file.write(task);, inside a body that workers run' 'channel->receive(task);, inside a body that workers run' \
  'read_foreign_bytes has no line' 'names read_nothing, which no header has' \
  'shard/unused.h has no user outside shard/' 'docs/loader.md names no_such_word; it does not' \
  'tools/output.cc includes tools/parse.h, which does not stand before it' \
  'python/src/bindings.h includes python/src/work.h, which does not stand before it' \
  'checkpoint/verify.h names its errors' \
  'fields of ManagerOptions: found' 'methods of CheckpointManager: found' 'public headers of reshape/: found 3' \
  'lines of headers with checkpoint/jobs/manager.h: found' 'words: found 10' \
  'verify.py:' 'imports torch/_save, which does not stand before it' 'imports __init__, which does not stand before it' \
  '_jobs/links, _jobs/manager import each other' 'values.py has "linecache"' 'values.py has "sys.modules"' 'values.py has "_getframe"' 'values.py has "setattr(torch"' '_astray.py has no place in the order' \
  'python/shardwise/_programs has 24 files' \
  'shard/torus has 33 files' 'shardwise::detail::ChunkRecord is a type in checkpoint loader'; do
  grep -qF "$needed" <<< "$found" || { echo "not noticed: $needed"; status=1; }
done
exit $status
