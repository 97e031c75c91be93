#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardwise::tools {

// Put the step that words or --step name into a command's paths. They throw as chosen_path(), and
// BadUsage for words that do not go together.

/// Makes the path that of a step, if one is given.
void choose_step(std::string& path, const std::string& step);

/// The same; the first of the patterns may be the step, which then is taken away.
void choose_step(std::string& path, std::string& step, std::vector<std::string>& patterns);

/// The same for a source; the words are a step, perhaps, and the target.
void choose_with_target(std::string_view command, std::string& source, std::string& step,
                        std::vector<std::string>& words, std::string& target);

/// Takes the first word away if it names a step of the path.
void take_step(const std::string& path, std::string& step, std::vector<std::string>& words);

/// The steps of a root that the words after it mean. Throws for a word without a step.
std::vector<std::string> paths_of_steps(std::string_view command, const std::string& root,
                                        const std::vector<std::string>& words);

[[noreturn]] void refuse_word(std::string_view command, const std::string& word);

}  // namespace shardwise::tools
