#pragma once

#include <cstdint>
#include <functional>

namespace shardwise::detail {

/// Calls body(begin, end) for chunks of `chunk` numbers that cover 0 .. total-1, on `threads`
/// threads of its own, which may block on files, and returns when all have ended. After each chunk
/// progress(done, total) is called, if given, one call at a time and with rising `done`. If bodies
/// fail, the error of the lowest chunk is thrown, so that it is the same for any number of threads;
/// an error of progress is thrown if no body failed. Throws invalid_argument if threads < 1.
void for_each_chunk(std::int64_t total, std::int64_t chunk, int threads,
                    const std::function<void(std::int64_t done, std::int64_t total)>& progress,
                    const std::function<void(std::int64_t begin, std::int64_t end)>& body);

}  // namespace shardwise::detail
