#include "shardwise/loader/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "loader/pattern_source.h"
#include "shardwise/loader/loader.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<const PatternSource> fields_of(std::vector<Field> fields) {
  return std::make_shared<const PatternSource>(20, std::move(fields));
}

const std::vector<Field> kImageAndLabel{{"image", DType::u8, {4, 3}}, {"label", DType::i32, {}}};

std::vector<std::string> specs_of(const std::vector<FieldPlacement>& placements) {
  std::vector<std::string> texts;
  for (const FieldPlacement& placement : placements) {
    texts.push_back(placement.field + ": " + placement.sharding.spec().to_string());
  }
  return texts;
}

TEST(Placement, GivesOneSpecToAllFieldsThatItFits) {
  const Mesh mesh = Mesh::parse("data=2,model=2");
  const auto same = fields_of({{"x", DType::u8, {4}}, {"y", DType::u8, {7}}});
  EXPECT_THAT(specs_of(place_all(*same, mesh, "data,model")),
              ElementsAre("x: data,model", "y: data,model"));
  for (const char* spec : {"data,-,-", "data", "data,-", ""}) {
    const std::string message = message_of(
        ErrorCode::invalid_argument, [&] { place_all(*fields_of(kImageAndLabel), mesh, spec); });
    EXPECT_THAT(message, HasSubstr("needed is rank"));
    const bool image_fits = std::string(spec) == "data,-,-";
    EXPECT_THAT(message, HasSubstr(image_fits ? "place field \"label\" of record shape [] by"
                                              : "place field \"image\" of record shape [4, 3] by"));
  }
}

TEST(Placement, GivesEachFieldItsOwnSpec) {
  const Mesh mesh = Mesh::parse("data=2,model=2");
  const auto two = fields_of(kImageAndLabel);
  EXPECT_THAT(specs_of(place_fields(*two, mesh, {{"label", "data"}, {"image", "data,model,-"}})),
              ElementsAre("image: data,model,-", "label: data"));
  EXPECT_THAT(specs_of(place_fields(*two, mesh, {{"label", "-"}})), ElementsAre("label: -"));
  EXPECT_THAT(message_of(ErrorCode::no_such_name,
                         [&] {
                           place_fields(*two, mesh, {{"lable", "data"}});
                         }),
              HasSubstr("no field \"lable\""));
  EXPECT_THAT(
      message_of(ErrorCode::invalid_argument,
                 [&] {
                   place_fields(*two, mesh, {{"image", "data,-"}});
                 }),
      HasSubstr("place field \"image\" of record shape [4, 3] by \"data,-\": it has rank 2, "
                "needed is rank 3"));
  EXPECT_THAT(message_of(ErrorCode::no_such_name,
                         [&] {
                           place_fields(*two, mesh, {{"label", "rows"}});
                         }),
              HasSubstr("place field \"label\""));
}

TEST(Placement, CutsTheBatchWhereThatIsAskedFor) {
  const Mesh mesh = Mesh::parse("data=2,model=2");
  const auto two = fields_of(kImageAndLabel);
  EXPECT_THAT(specs_of(cut_batch(*two, mesh, "data")),
              ElementsAre("image: data,-,-", "label: data"));
  EXPECT_THAT(specs_of(cut_batch(*two, mesh, "model+data")),
              ElementsAre("image: model+data,-,-", "label: model+data"));
  EXPECT_THAT(message_of(ErrorCode::no_such_name, [&] { cut_batch(*two, mesh, "rows"); }),
              HasSubstr("rows"));
}

TEST(Placement, NamesTheFieldThatHasTooFewDevices) {
  Devices devices(3, {.threads = 1});
  const auto two = fields_of(kImageAndLabel);
  EXPECT_THAT(
      message_of(ErrorCode::not_found,
                 [&] { Loader(devices, two, cut_batch(*two, Mesh::parse("data=4"), "data"), {}); }),
      HasSubstr("loader: field \"image\": "));
}

}  // namespace
}  // namespace shardwise
