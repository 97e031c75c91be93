#include "shardwise/shard/notation/xla_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shardwise/shard/error.h"
#include "testing/errors.h"
#include "testing/make_sharding.h"
#include "testing/random_shardings.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(XlaText, PrintsTheThreeForms) {
  const struct {
    const char *spec, *mesh, *v1, *v2, *v3;
  } cases[] = {
      {"-,b", "a=4,b=2", "{devices=[1,2,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}",
       "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}",
       "{mesh['a'=4,'b'=2], [{}, {'b'}]}"},
      {"-,c+b", "a=1,b=2,c=4", "{devices=[1,8]0,4,1,5,2,6,3,7}", "{devices=[1,8]<=[2,4]T(1,0)}",
       "{mesh['a'=1,'b'=2,'c'=4], [{}, {'c', 'b'}]}"},
      {"a,b", "a=1,b=4@3,2,1,0", "{devices=[1,4]3,2,1,0}", "{devices=[1,4]<=[4]}",
       "{mesh['a'=1,'b'=4], device_ids=(3,2,1,0), [{'a'}, {'b'}]}"},
      {"a", "a=2,b=4@[4,2]T(1,0)", "{devices=[2,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}",
       "{devices=[2,4]<=[8] last_tile_dim_replicate}",
       "{mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)), [{'a'}]}"},
      {"x:(2)4,x:(1)2", "x=8", "{devices=[4,2]0,4,1,5,2,6,3,7}", "{devices=[4,2]<=[2,4]T(1,0)}",
       "{mesh['x'=8], [{'x':(2)4}, {'x':(1)2}]}"},
      {"-", "a=2", "{replicated}", "{replicated}", "{mesh['a'=2], [{}]}"},
      {"", "a=2", "{replicated}", "{replicated}", "{mesh['a'=2], []}"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.v3);
    const Sharding sharding = make_sharding(c.spec, c.mesh);
    EXPECT_EQ(to_xla_v1(sharding), c.v1);
    EXPECT_EQ(to_xla_v2(sharding), c.v2);
    EXPECT_EQ(to_xla_v3(sharding), c.v3);
  }
}

TEST(XlaText, ReadsWhatItPrints) {
  RandomShardings random(12);
  for (int round = 0; round < 4000; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 4));
    const Mesh mesh = random.mesh();
    const Sharding sharding(mesh, random.spec_with_parts(mesh, rank));
    for (const std::string& text :
         {to_xla_v1(sharding), to_xla_v2(sharding), to_xla_v3(sharding)}) {
      const XlaSharding again = parse_xla_text(text, mesh, rank);
      ASSERT_TRUE(again.placement && *again.placement == sharding)
          << text << " of " << sharding.to_string();
      ASSERT_EQ(again.type, sharding_type(sharding)) << text;
    }
    ASSERT_EQ(PartitionSpec::parse(sharding.spec().to_string()), sharding.spec());
    ASSERT_EQ(PartitionSpec::parse(to_jax_text(sharding.spec())).to_string(),
              sharding.spec().to_string());
  }
}

TEST(XlaText, KnowsTheKindsThatAreWords) {
  const Mesh mesh = Mesh::line(4);
  const XlaSharding maximal = parse_xla_text("{maximal device=3}", mesh, 2);
  EXPECT_EQ(maximal.type, ShardingType::maximal);
  EXPECT_EQ(maximal.placement->box(3, {4, 5}), Box::whole({4, 5}));
  EXPECT_FALSE(maximal.placement->mesh().position_of(0));
  EXPECT_EQ(to_xla_v1(maximal), "{maximal device=3}");
  EXPECT_EQ(parse_xla_text("{unknown}", mesh, 1).type, ShardingType::unknown);
  EXPECT_TRUE(parse_xla_text("{unknown}", mesh, 1).placement->is_fully_replicated());
  for (const char* text : {"{manual}", "{devices=[2,2]<=[4] last_tile_dims={manual}}",
                           "{devices=[1,2,2]<=[4] last_tile_dims={manual, replicated}}",
                           "{mesh['a'=2,'b'=2], [{'a'}], manual={'b'}}"}) {
    const XlaSharding manual = parse_xla_text(text, mesh, 1);
    EXPECT_EQ(manual.type, ShardingType::manual) << text;
    EXPECT_FALSE(manual.placement) << text;
    EXPECT_EQ(to_xla_v2(manual), "{manual}");
  }
}

TEST(XlaText, WhatLiesOnSomeDevicesReadsBackOverThem) {
  for (const char* text : {"{mesh['a'=1], [{'a'}]}", "{mesh['a'=2], device_ids=(5,3), [{}]}",
                           "{devices=[1,2]4,7 last_tile_dim_replicate}", "{maximal device=3}"}) {
    const XlaSharding some = parse_xla_text(text, Mesh::line(8), 1);
    const XlaSharding again = parse_xla_text(to_xla_v1(some), some.placement->mesh(), 1);
    EXPECT_EQ(*again.placement, *some.placement) << text;
    EXPECT_NE(*again.placement, Sharding::replicated(Mesh::line(8), 1)) << text;
  }
}

TEST(XlaText, ReadsWhatXlaReads) {
  const Mesh mesh = Mesh::parse("a=2,b=4");
  const struct {
    const char *text, *canonical;
  } cases[] = {
      {"{ devices=[2,4] <= [8] }", "{devices=[2,4]<=[8]}"},
      {"{devices=[2,4]<=[8] metadata={op_name=\"a}b\" source_line=3}}", "{devices=[2,4]<=[8]}"},
      {"{devices=[4,1,2]<=[8] last_tile_dims={replicated}}",
       "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"},
      {"{devices=[1,1,8]<=[8] last_tile_dim_replicate}", "{replicated}"},
      {"{devices=[2,4]0,1,2,3,4,5,6,7}", "{devices=[2,4]<=[8]}"},
      {"{mesh['a'=2,'b'=4], [{'a', ?}, {?}]}", "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"},
      {"{mesh['a'=2,'b'=4], [{'b'}, {}], replicated={'a'}}",
       "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"},
      {"{mesh['a'=2,'b'=4], [{'a'}, {}], unreduced={}}",
       "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"},
      {"{mesh[], replicated}", "{replicated}"},
      {"{mesh['a'=2], device_ids=(5,3), [{'a'}, {}]}", "{devices=[2,1]<=[2]}"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    EXPECT_EQ(to_xla_v2(parse_xla_text(c.text, mesh, 2)), c.canonical);
  }
  // V2 counts positions of the mesh, V1 and V3 name devices.
  const Mesh reversed = Mesh::parse("4@3,2,1,0");
  EXPECT_EQ(parse_xla_text("{devices=[4]<=[4]}", reversed, 1).placement->box(3, {8}),
            Box({0}, {2}));
  EXPECT_EQ(parse_xla_text("{devices=[4]0,1,2,3}", reversed, 1).placement->box(3, {8}),
            Box({6}, {8}));
}

TEST(XlaText, RefusesWhatIsNoSharding) {
  const Mesh mesh = Mesh::parse("a=2,b=4");
  const struct {
    const char *text, *found;
    ErrorCode code = ErrorCode::invalid_argument;
  } cases[] = {
      {"", "found the end at character 0; needed is '{'"},
      {"{", "needed is a word"},
      {"{nonsense}", "needed is replicated"},
      {"{devices=[2,2]0,1,2}", "3 devices for 4 tiles"},
      {"{devices=[2,2]<=[5]}", "5 devices for 4 tiles"},
      {"{devices=[2,2]0,1,2,2}", "device id 2 is at positions 2 and 3"},
      {"{devices=[2,1]0,9}", "device 9 is not in the mesh"},
      {"{devices=[2,-1]<=[2]}", "needed is a number"},
      {"{devices=[0,2]<=[0]}", "at least 1"},
      {"{devices=[4294967296,4294967296]<=[8]}", "fewer than 2^63"},
      {"{devices=[4,4]<=[16]}", "16 tiles; the mesh"},
      {"{devices=[8]<=[8]}", "it cuts 1 dims; needed are 2"},
      {"{devices=[2,4]<=[8]", "needed is '}'"},
      {"{devices=[2,4]<=[8]} more", "needed is the end"},
      {"{devices=[2,4]<=[2,4]T(0,0)}", "each of the 2 dims once"},
      {"{devices=[2,4]<=[8] last_tile_dims={secret}}", "'replicated'"},
      {"{maximal device=8}", "device 8 is not in the mesh"},
      {"{mesh['a'=2,'b'=4], [{'c'}, {}]}", "no axis \"c\"", ErrorCode::no_such_name},
      {"{mesh['a'=2,'b'=4], [{'a'}, {'a'}]}", "used twice"},
      {"{mesh['a'=2,'b'=4], [{'a'}, {}], replicated={'a'}}", "used twice"},
      {"{mesh['a'=2,'b'=4], [{'a'}]}", "it cuts 1 dims; needed are 2"},
      {"{mesh['a'=16], [{'a'}, {}]}", "16 devices; needed are at most the 8"},
      {"{mesh[a=2], [{}, {}]}", "a name in quotes"},
      {"{mesh['a'=8], [{'a':(3)2}, {}]}", "no part (3)2"},
      {"{{replicated}, {replicated}}", "several tensors", ErrorCode::unsupported},
      {"{unreduced}", "parts of sums", ErrorCode::unsupported},
      {"{devices=[2,4]<=[8] shard_as 1}", "places none", ErrorCode::unsupported},
      {"{mesh['a'=2,'b'=4], [{'a'}, {}], unreduced={'b'}}", "parts of sums",
       ErrorCode::unsupported},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    EXPECT_THAT(message_of(c.code, [&] { parse_xla_text(c.text, mesh, 2); }), HasSubstr(c.found));
  }
}

TEST(XlaText, PoliciesThatXlaLacksHaveNoText) {
  const Sharding balanced(Mesh::line(2), PartitionSpec::parse("0"), UnevenPolicy::balanced());
  EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { to_xla_v1(balanced); }),
              HasSubstr("balanced"));
  EXPECT_THROW(to_xla_v2(balanced), Error);
  EXPECT_THROW(to_xla_v3(balanced), Error);
}

TEST(JaxText, GoesBothWays) {
  const struct {
    const char *jax, *ours;
  } cases[] = {
      {"P()", ""},
      {"P('data',)", "data"},
      {"P('data', None, ('a', 'b'))", "data,-,a+b"},
      {"P(None, None)", "-,-"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(parse_jax_text(c.jax).to_string(), c.ours);
    EXPECT_EQ(to_jax_text(PartitionSpec::parse(c.ours)), c.jax);
  }
  EXPECT_EQ(parse_jax_text("PartitionSpec( \"x\" ,(), ('y',))").to_string(), "x,-,y");
  EXPECT_EQ(PartitionSpec::parse("(0, None, ('a', 1))").to_string(), "0,-,a+1");
}

TEST(JaxText, RefusesWhatIsNoSpec) {
  const struct {
    const char *text, *found;
    ErrorCode code = ErrorCode::invalid_argument;
  } cases[] = {
      {"P('a'", "',' or ')'"},
      {"P('a)", "a closing quote"},
      {"P(a)", "None, an axis name in quotes"},
      {"P(('a', ('b',)))", "None, an axis name in quotes"},
      {"P(True)", "None, an axis name in quotes"},
      {"P(1.0)", "',' or ')'"},
      {"P(-1)", "None, an axis name in quotes"},
      {"P('a' 'b')", "',' or ')'"},
      {"P('a,b')", "a name or a number"},
      {"P('a') x", "the end"},
      {"P(None, UNCONSTRAINED)", "UNCONSTRAINED", ErrorCode::unsupported},
      {"P('a', unreduced={'b'})", "unreduced", ErrorCode::unsupported},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    EXPECT_THAT(message_of(c.code, [&] { PartitionSpec::parse(c.text); }), HasSubstr(c.found));
  }
}

}  // namespace
}  // namespace shardwise
