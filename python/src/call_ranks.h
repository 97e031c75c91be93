#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <vector>

#include "bindings.h"
#include "gil.h"
#include "python_source.h"
#include "shardwise/runtime/process/call_group.h"
#include "shardwise/runtime/process/rendezvous.h"
#include "shardwise/shard/error.h"
#include "work.h"

namespace shardwise::python {

inline Bytes bytes_in(const nb::bytes& bytes) {
  const auto* const data = static_cast<const std::byte*>(bytes.data());
  return {data, data + bytes.size()};
}

/// Calls the body without the GIL.
template <class Body>
auto without_gil(const Body& body) {
  const GilRelease released;
  return body();
}

/// The ranks of a Call of shardwise.group, which waits in Python's code on the caller's thread.
/// An error of Shardwise's that agree() raises is thrown with its code, and `cancelled` if another
/// rank has told of it; it comes out as Python raised it. So does what else is raised.
class CallRanks final : public Rendezvous {
 public:
  /// Work that is long runs in `work`; null: on the caller's thread, as it calls Python. Keeps
  /// references.
  explicit CallRanks(nb::handle call, python::Work* work = nullptr)
      : call_(call),
        rank_(nb::cast<int>(call.attr("rank"))),
        size_(nb::cast<int>(call.attr("size"))),
        work_(work) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void check(std::chrono::milliseconds /*wait*/) const override {}

  // Without the GIL.
  Bytes agree(const Rendezvous::Work& work, const Merge& merge) const override {
    return with_gil([&] {
      bool is_own = false;  // what agree() raises
      const nb::object run = nb::cpp_function([&] {
        is_own = true;
        Bytes said;
        if (work) said = work_ ? work_->run(work) : without_gil(work);
        is_own = false;
        return nb::bytes(said.data(), said.size());
      });
      const nb::object merged = nb::cpp_function([&](const std::vector<nb::bytes>& all) {
        is_own = true;
        std::vector<Bytes> said;
        for (const nb::bytes& one : all) {
          if (work) said.push_back(bytes_in(one));
        }
        const Bytes made = without_gil([&] { return merge(std::move(said)); });
        is_own = false;
        return nb::bytes(made.data(), made.size());
      });
      try {
        return bytes_in(nb::cast<nb::bytes>(call_.attr("agree")(run, merged)));
      } catch (const nb::python_error& error) {
        throw_error_of(error, is_own);
        throw;
      }
    });
  }

 private:
  static void throw_error_of(const nb::python_error& error, bool is_own) {
    if (!is_error(error.value())) return;
    const std::optional<ErrorCode> code = code_of(error.value());
    const PythonRaised raised(error, is_own && code ? *code : ErrorCode::cancelled);
    if (code) throw raised;
    try {
      throw raised;
    } catch (const PythonRaised&) {
      std::throw_with_nested(GroupError(raised.what()));
    }
  }

  nb::handle call_;
  const int rank_, size_;
  python::Work* const work_;
};

}  // namespace shardwise::python
