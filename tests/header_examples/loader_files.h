#pragma once

namespace shardwise {

/// Writes the files that docs/loader.md reads to the current folder: photos/, train.bin,
/// docs.jsonl, houses.csv and images.gz.
void write_loader_files();

}  // namespace shardwise
