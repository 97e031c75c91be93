// Texts that name a source: refused with an Error. Those with a path that may lead somewhere are
// only taken apart.

#include <filesystem>
#include <string_view>
#include <system_error>

#include "fuzz/source_fuzz.h"
#include "shardwise/loader/detail/files/source_text.h"
#include "shardwise/loader/open_source.h"

namespace shardwise {
namespace {

bool leads_nowhere(const detail::SourceText& text) {
  for (const std::filesystem::path& path : text.paths) {
    const std::string& name = path.native();
    if (name.find("..") != std::string::npos || name.find('/') != std::string::npos) return false;
    std::error_code ignored;
    if (std::filesystem::exists(std::filesystem::symlink_status(path, ignored))) return false;
  }
  return true;
}

void check_text(std::string_view text) {
  const detail::SourceText parts = detail::parse_source_text(text);
  for (const auto& [name, value] : parts.options) {
    try {
      const detail::FieldType type = detail::parse_field_type(parts, name, value);
      require(!type.ragged || (type.shape && (*type.shape)[0] == 0), "ragged", value);
    } catch (const Error& error) {
      require_readable(error);
    }
  }
  if (leads_nowhere(parts)) open_source(text);
}

}  // namespace
}  // namespace shardwise

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    shardwise::check_text({reinterpret_cast<const char*>(data), size});
  } catch (const shardwise::Error& error) {
    // A name may be too long for the system.
    if (error.code() != shardwise::ErrorCode::io) shardwise::require_readable(error);
  }
  return 0;
}
