#pragma once

#include "options.h"

namespace shardwise::tools {

// Each command declares its words and options. If they are given, `run` becomes the work: it prints
// the result on stdout and returns the exit status (0 done, 1 the answer is no). Failures are
// thrown.
void declare_shards(CLI::App& app, Run& run);
void declare_explain(CLI::App& app, Run& run);
void declare_plan(CLI::App& app, Run& run);
void declare_ls(CLI::App& app, Run& run);
void declare_inspect(CLI::App& app, Run& run);
void declare_verify(CLI::App& app, Run& run);
void declare_parity(CLI::App& app, Run& run);
void declare_diff(CLI::App& app, Run& run);
void declare_cat(CLI::App& app, Run& run);
void declare_stats(CLI::App& app, Run& run);
void declare_du(CLI::App& app, Run& run);
void declare_tiers(CLI::App& app, Run& run);
void declare_rm(CLI::App& app, Run& run);
void declare_pin(CLI::App& app, Run& run);
void declare_unpin(CLI::App& app, Run& run);
void declare_gc(CLI::App& app, Run& run);
void declare_cp(CLI::App& app, Run& run);
void declare_reshard(CLI::App& app, Run& run);
void declare_import(CLI::App& app, Run& run);
void declare_export(CLI::App& app, Run& run);
void declare_batches(CLI::App& app, Run& run);
void declare_bench_save(CLI::App& bench, Run& run);
void declare_bench_restore(CLI::App& bench, Run& run);

}  // namespace shardwise::tools
