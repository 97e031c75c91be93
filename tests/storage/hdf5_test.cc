#include "shardwise/storage/detail/hdf5.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "testing/errors.h"

namespace shardwise::detail {
namespace {

using testing::HasSubstr;
using testing::internal::CaptureStderr;
using testing::internal::GetCapturedStderr;

TEST(Hdf5, FailuresBecomeErrorsAndPrintNothing) {
  const auto fail = [] {
    const std::string message = message_of(ErrorCode::corrupt, [] {
      const Hdf5Lock lock;
      const H5File file(H5Fopen("/nonexistent/x.h5", H5F_ACC_RDONLY, H5P_DEFAULT), "open x.h5",
                        ErrorCode::corrupt);
    });
    EXPECT_THAT(message, HasSubstr("open x.h5: HDF5: "));
    EXPECT_THAT(message, HasSubstr("No such file or directory"));
  };
  CaptureStderr();
  fail();
  // Printing is a setting of each thread.
  std::jthread(fail).join();
  EXPECT_EQ(GetCapturedStderr(), "");
}

TEST(Hdf5, LeavesTheThreadsOwnPrinterAlone) {
  const H5E_auto2_t printer = [](hid_t, void*) { return 0; };
  H5Eset_auto2(H5E_DEFAULT, printer, nullptr);
  { const Hdf5Lock lock; }
  H5E_auto2_t found = nullptr;
  void* data = nullptr;
  H5Eget_auto2(H5E_DEFAULT, &found, &data);
  EXPECT_EQ(found, printer);
}

// A child that found the lock taken would wait for a thread that it does not have.
TEST(Hdf5, AForkedChildCanTakeTheLockThatAnotherThreadHeld) {
  std::jthread other([](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const Hdf5Lock lock;
      const H5Space space = hdf5_space({2, 3});
    }
  });
  for (int i = 0; i < 100; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);  // ends a child that hangs
      {
        const Hdf5Lock lock;
        const H5Space space = hdf5_space({2, 3});
      }
      ::_exit(0);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }
}

TEST(Hdf5, TypesHaveTheirSizeClassAndBits) {
  const Hdf5Lock lock;
  for (const DType dtype : all_dtypes()) {
    SCOPED_TRACE(name(dtype));
    const H5Type type = hdf5_type(dtype);
    EXPECT_EQ(H5Tget_size(type.get()), size_bytes(dtype));
    const bool is_float = dtype <= DType::bf16 || dtype == DType::f8_e5m2;
    const H5T_class_t expected = is_float                  ? H5T_FLOAT
                                 : dtype >= DType::c64     ? H5T_COMPOUND
                                 : dtype == DType::boolean ? H5T_ENUM
                                                           : H5T_INTEGER;
    EXPECT_EQ(H5Tget_class(type.get()), expected);
  }
  const H5Type bf16 = hdf5_type(DType::bf16);
  std::size_t sign = 0, exponent = 0, exponent_size = 0, mantissa = 1, mantissa_size = 0;
  H5Tget_fields(bf16.get(), &sign, &exponent, &exponent_size, &mantissa, &mantissa_size);
  EXPECT_EQ(sign, 15u);
  EXPECT_EQ(exponent, 7u);
  EXPECT_EQ(exponent_size, 8u);
  EXPECT_EQ(mantissa, 0u);
  EXPECT_EQ(mantissa_size, 7u);
  EXPECT_EQ(H5Tget_ebias(bf16.get()), 127u);
}

// The library itself agrees about the meaning of the 16-bit patterns.
TEST(Hdf5, HalvesHaveTheirValues) {
  const Hdf5Lock lock;
  struct Case {
    DType dtype;
    std::uint16_t bits;
    float value;
  };
  const Case cases[] = {{DType::f16, 0x3C00, 1.0f},           {DType::f16, 0xC248, -3.140625f},
                        {DType::f16, 0x0001, 5.9604645e-08f}, {DType::bf16, 0x3F80, 1.0f},
                        {DType::bf16, 0xC049, -3.140625f},    {DType::bf16, 0x7F7F, 3.3895314e38f}};
  for (const Case& c : cases) {
    const H5Type type = hdf5_type(c.dtype);
    float value = 0;
    std::memcpy(&value, &c.bits, sizeof c.bits);
    check_hdf5(H5Tconvert(type.get(), H5T_NATIVE_FLOAT, 1, &value, nullptr, H5P_DEFAULT),
               "convert");
    EXPECT_EQ(value, c.value);
  }
}

// f8_e5m2 is the upper byte of an f16: so says the library, too, of all that are not NaN.
TEST(Hdf5, EveryFloatOfAByteHasItsValue) {
  const Hdf5Lock lock;
  const H5Type type = hdf5_type(DType::f8_e5m2);
  for (unsigned bits = 0; bits < 256; ++bits) {
    const float expected = f16_to_f32(static_cast<std::uint16_t>(bits << 8));
    float value = 0;
    std::memcpy(&value, &bits, 1);
    check_hdf5(H5Tconvert(type.get(), H5T_NATIVE_FLOAT, 1, &value, nullptr, H5P_DEFAULT),
               "convert");
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      EXPECT_EQ(std::memcmp(&value, &expected, sizeof value), 0) << bits;
    }
  }
}

TEST(Hdf5, ComplexNumbersAreTheirPartsInOrder) {
  const Hdf5Lock lock;
  for (const auto& [dtype, part] :
       {std::pair(DType::c64, H5T_IEEE_F32LE), std::pair(DType::c128, H5T_IEEE_F64LE)}) {
    const H5Type type = hdf5_type(dtype);
    ASSERT_EQ(H5Tget_nmembers(type.get()), 2);
    EXPECT_EQ(H5Tget_member_index(type.get(), "r"), 0);
    EXPECT_EQ(H5Tget_member_index(type.get(), "i"), 1);
    EXPECT_EQ(H5Tget_member_offset(type.get(), 1), size_bytes(dtype) / 2);
    for (unsigned member : {0u, 1u}) {
      const H5Type found(H5Tget_member_type(type.get(), member), "member");
      EXPECT_GT(H5Tequal(found.get(), part), 0);
    }
  }
}

TEST(Hdf5, ScalarsAndEmptyShapesHaveDataspaces) {
  const Hdf5Lock lock;
  EXPECT_EQ(H5Sget_simple_extent_type(hdf5_space({}).get()), H5S_SCALAR);
  EXPECT_EQ(H5Sget_simple_extent_npoints(hdf5_space({3, 0, 2}).get()), 0);
  EXPECT_EQ(H5Sget_simple_extent_npoints(hdf5_space({3, 5}).get()), 15);
}

}  // namespace
}  // namespace shardwise::detail
