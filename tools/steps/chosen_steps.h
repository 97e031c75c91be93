#pragma once

#include "commands/commands.h"

namespace shardwise::tools {

// Puts the step that the words or --step name into a command's paths. Throws as chosen_path(), and
// BadUsage for words that do not go together.

template <class Options>
void choose_steps(Options&) {}  // of a command that takes no step
void choose_steps(LsOptions& options);
void choose_steps(InspectOptions& options);
void choose_steps(VerifyOptions& options);
void choose_steps(ParityCommandOptions& options);
void choose_steps(DiffOptions& options);
void choose_steps(CatOptions& options);
void choose_steps(StatsOptions& options);
void choose_steps(DuOptions& options);
void choose_steps(RmOptions& options);
void choose_steps(PinOptions& options);
void choose_steps(CheckedReshardOptions& options);
void choose_steps(ExportOptions& options);
void choose_steps(BenchRestoreOptions& options);

}  // namespace shardwise::tools
