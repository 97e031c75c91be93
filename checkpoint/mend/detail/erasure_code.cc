#include "shardwise/mend/detail/erasure_code.h"

#include <isa-l/erasure_code.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>

namespace shardwise::mend_detail {
namespace {

constexpr std::size_t kTableBytes = 32;

unsigned char factor(std::size_t row, std::size_t source) {
  return gf_inv(static_cast<unsigned char>((detail::kMostGroupBlocks - row) ^ source));
}

unsigned char* bytes_of(std::byte* data) { return reinterpret_cast<unsigned char*>(data); }

// The library's functions change no data; its headers do not say so.
unsigned char* bytes_of(const std::byte* data) { return bytes_of(const_cast<std::byte*>(data)); }

}  // namespace

ErasureCode::ErasureCode(std::vector<std::size_t> rows) : rows_(std::move(rows)) {
  if (rows_.empty()) return;
  const std::size_t sources = detail::kMostGroupBlocks - std::ranges::max(rows_);
  tables_.resize(sources * rows_.size() * kTableBytes);
  std::vector<unsigned char> factors(rows_.size());
  for (std::size_t source = 0; source < sources; ++source) {
    std::ranges::transform(rows_, factors.begin(),
                           [source](std::size_t row) { return factor(row, source); });
    ec_init_tables(1, static_cast<int>(rows_.size()), factors.data(),
                   tables_.data() + source * rows_.size() * kTableBytes);
  }
}

void ErasureCode::add(std::size_t source, std::span<const std::byte> data,
                      std::span<std::byte* const> sums) const {
  assert(sums.size() == rows_.size());
  const std::size_t table = source * rows_.size() * kTableBytes;
  assert(table < tables_.size());
  std::array<unsigned char*, detail::kMostGroupBlocks> places;
  const auto add_at = [&](std::size_t at, const std::byte* bytes, std::size_t size) {
    std::ranges::transform(sums, places.begin(),
                           [at](std::byte* sum) { return bytes_of(sum + at); });
    ec_encode_data_update(static_cast<int>(size), 1, static_cast<int>(rows_.size()), 0,
                          const_cast<unsigned char*>(tables_.data() + table), bytes_of(bytes),
                          places.data());
  };
  const std::size_t whole = data.size() / detail::kParityStepBytes * detail::kParityStepBytes;
  if (whole != 0) add_at(0, data.data(), whole);
  if (whole == data.size()) return;
  std::array<std::byte, detail::kParityStepBytes> rest{};
  std::ranges::copy(data.subspan(whole), rest.begin());
  add_at(whole, rest.data(), rest.size());
}

void ErasureCode::solve(std::span<const std::size_t> missing, std::span<std::byte* const> sums,
                        std::span<std::byte* const> found, std::size_t bytes) const {
  const std::size_t count = missing.size();
  assert(count <= rows_.size() && count <= sums.size() && count == found.size());
  std::vector<unsigned char> factors, inverse(count * count), tables(count * count * kTableBytes);
  for (std::size_t r = 0; r < count; ++r) {
    for (const std::size_t source : missing) factors.push_back(factor(rows_[r], source));
  }
  const int n = static_cast<int>(count);
  [[maybe_unused]] const int singular = gf_invert_matrix(factors.data(), inverse.data(), n);
  assert(singular == 0);
  ec_init_tables(n, n, inverse.data(), tables.data());
  std::vector<unsigned char*> from, to;
  for (std::size_t i = 0; i < count; ++i) {
    from.push_back(bytes_of(sums[i]));
    to.push_back(bytes_of(found[i]));
  }
  ec_encode_data(static_cast<int>(bytes), n, n, tables.data(), from.data(), to.data());
}

}  // namespace shardwise::mend_detail
