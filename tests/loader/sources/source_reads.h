#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "loader/idx_files.h"
#include "loader/sources/bytes_file.h"
#include "shardwise/loader/source.h"
#include "shardwise/shard/error.h"
#include "testing/random_boxes.h"
#include "testing/random_shardings.h"

namespace shardwise {

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto all = std::as_bytes(std::span(values));
  return Bytes(all.begin(), all.end());
}

inline Bytes read_bytes(const Source& source, std::size_t field, std::int64_t record,
                        const Box& box) {
  Bytes all(num_bytes(box.shape(), size_bytes(source.fields()[field].dtype)), std::byte{0xaa});
  source.read_box(field, record, {all.data(), box});
  return all;
}

inline Bytes read_whole(const Source& source, std::size_t field, std::int64_t record) {
  return read_bytes(source, field, record, Box::whole(source.fields()[field].shape));
}

/// All elements of a record's field, as T.
template <class T>
std::vector<T> read_values(const Source& source, std::size_t field, std::int64_t record) {
  const Bytes all = read_whole(source, field, record);
  if (all.size() % sizeof(T) != 0) throw std::logic_error("another type");
  std::vector<T> values(all.size() / sizeof(T));
  if (!all.empty()) std::memcpy(values.data(), all.data(), all.size());
  return values;
}

/// A text of a ragged field, as long as it is.
inline std::string read_text(const Source& source, std::size_t field, std::int64_t record) {
  const Bytes all = read_whole(source, field, record);
  std::string text(reinterpret_cast<const char*>(all.data()), all.size());
  const auto length = static_cast<std::size_t>(source.length({.record = record}, field));
  EXPECT_EQ(text.substr(length), std::string(text.size() - length, '\0')) << "past the end";
  return text.substr(0, length);
}

/// Boxes at random, several together, are what whole reads say.
inline void expect_boxes_agree(const Source& source, int rounds, unsigned seed) {
  RandomShardings random(seed);
  for (int round = 0; round < rounds && source.size() > 0; ++round) {
    const std::int64_t record = random.draw(0, source.size() - 1);
    std::vector<Bytes> targets;
    std::vector<FieldBox> boxes;
    const auto count = static_cast<std::size_t>(random.draw(1, 4));
    for (std::size_t i = 0; i < count; ++i) {
      const auto field = static_cast<std::size_t>(
          random.draw(0, static_cast<std::int64_t>(source.fields().size()) - 1));
      const Field& its = source.fields()[field];
      const Box box = random_box(Box::whole(its.shape), random);
      targets.emplace_back(num_bytes(box.shape(), size_bytes(its.dtype)), std::byte{0x55});
      boxes.push_back({field, {targets.back().data(), box}});
    }
    source.read({.record = record}, boxes);
    for (std::size_t i = 0; i < count; ++i) {
      const Field& its = source.fields()[boxes[i].field];
      const Bytes whole = read_whole(source, boxes[i].field, record);
      Bytes expected(targets[i].size());
      copy_box(boxes[i].to.box, size_bytes(its.dtype), {whole.data(), Box::whole(its.shape)},
               {expected.data(), boxes[i].to.box});
      ASSERT_EQ(targets[i], expected) << its.name << " of record " << record;
    }
  }
}

/// Reads every record. Errors are corrupt and have messages of one line.
inline void read_all_or_fail(const Source& source) {
  for (std::int64_t record = 0; record < source.size(); ++record) {
    for (std::size_t field = 0; field < source.fields().size(); ++field) {
      try {
        read_whole(source, field, record);
        const std::int64_t length = source.length({.record = record}, field);
        const Shape& shape = source.fields()[field].shape;
        EXPECT_TRUE(length >= 0 && length <= (shape.empty() ? 1 : shape[0]));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::corrupt) << error.what();
        EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
      }
    }
  }
}

/// Opens every beginning of the file, and the file with each byte changed: either is refused with
/// an Error, or can be read.
template <class Open>
void open_every_damage(const Bytes& good, Open&& open) {
  const auto attempt = [&](Bytes content) {
    try {
      read_all_or_fail(*open(file_of(std::move(content))));
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::corrupt || error.code() == ErrorCode::unsupported ||
                  error.code() == ErrorCode::invalid_argument)
          << error.what();
      EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos) << error.what();
    }
  };
  for (std::size_t size = 0; size <= good.size(); ++size) attempt(first_of(good, size));
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const int flip : {1, 0x20, 0x80, 0xff}) {
      Bytes damaged = good;
      damaged[at] ^= static_cast<std::byte>(flip);
      attempt(std::move(damaged));
    }
  }
}

}  // namespace shardwise
