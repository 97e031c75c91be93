#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings.h"

namespace shardwise::python {

/// The named fields of a bound value, from its class's __match_args__.
inline nb::tuple fields_of(nb::handle value) {
  nb::list all;
  for (const nb::handle name : nb::object(value.type().attr("__match_args__"))) {
    all.append(nb::getattr(value, name));
  }
  return nb::tuple(all);
}

/// Binds a struct as a class of read-only fields, with the repr, equality, hash, patterns and
/// copies that a frozen dataclass of these fields would have.
template <class T>
class ValueClass {
 public:
  ValueClass(nb::module_& module, const char* name, const char* doc) : class_(module, name, doc) {
    class_.def("__repr__", [](nb::handle_t<T> self) {
      std::string text;
      for (const nb::handle field : nb::object(self.type().attr("__match_args__"))) {
        text += (text.empty() ? "" : ", ") + str_of(field) + "=" +
                nb::cast<std::string>(nb::repr(nb::getattr(self, field)));
      }
      return nb::cast<std::string>(self.type().attr("__qualname__")) + "(" + text + ")";
    });
    class_.def("__eq__", [](nb::handle_t<T> self, nb::handle other) {
      return self.type().is(other.type()) && fields_of(self).equal(fields_of(other));
    });
    class_.def("__hash__", [](nb::handle_t<T> self) { return nb::hash(fields_of(self)); });
    class_.def("__getstate__", [members = members_](const T& self) {
      nb::list state;
      for (const Member& member : *members) state.append(member.get(self));
      return State(nb::tuple(state));
    });
    class_.def("__setstate__", [members = members_](T& self, const State& state) {
      T value{};
      bool fits = state.size() == members->size();
      for (std::size_t i = 0; fits && i < members->size(); ++i) {
        fits = (*members)[i].set(value, state[i]);
      }
      if (!fits) {
        throw Error(ErrorCode::invalid_argument,
                    "copy a value: found the state of another class, needed its own");
      }
      new (&self) T(std::move(value));
    });
  }

  ~ValueClass() { class_.attr("__match_args__") = nb::tuple(names_); }
  ValueClass(const ValueClass&) = delete;
  ValueClass& operator=(const ValueClass&) = delete;

  /// get: a member, or a function of a const T&, whose members state() names. doc: as a comment,
  /// without a full stop.
  template <class Get>
  ValueClass& field(const char* name, Get get, const char* doc = "") {
    if constexpr (std::is_member_object_pointer_v<Get>) {
      class_.def_ro(name, get, doc);
      state(get);
    } else {
      class_.def_prop_ro(name, std::move(get), doc);
    }
    names_.append(name);
    return *this;
  }

  /// A property outside repr and equality. doc: a sentence.
  template <class Get>
  ValueClass& property(const char* name, Get get, const char* doc = "") {
    class_.def_prop_ro(name, std::move(get), doc);
    return *this;
  }

  /// A property `ok` outside repr and equality, which bool() gives as well.
  ValueClass& ok(bool (T::*get)() const) {
    class_.def("__bool__", get);
    return property("ok", get);
  }

  /// Adds a member to copies and pickles, which have those of fields by themselves.
  template <class Value, class Owner>
  ValueClass& state(Value Owner::*member) {
    using Stored = std::conditional_t<std::is_enum_v<Value>, int, Value>;
    members_->push_back(
        {[member](const T& self) { return nb::cast(static_cast<Stored>(self.*member)); },
         [member](T& self, nb::handle state) {
           Stored stored{};
           const bool fits = nb::try_cast(state, stored);
           self.*member = static_cast<Value>(std::move(stored));
           return fits;
         }});
    return *this;
  }

 private:
  using State = nb::typed<nb::tuple, nb::any, nb::ellipsis>;

  struct Member {
    std::function<nb::object(const T&)> get;
    std::function<bool(T&, nb::handle)> set;  // false: of another type
  };

  std::shared_ptr<std::vector<Member>> members_ = std::make_shared<std::vector<Member>>();
  nb::class_<T> class_;
  nb::list names_;
};

}  // namespace shardwise::python
