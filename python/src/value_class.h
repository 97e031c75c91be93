#pragma once

#include <string>
#include <type_traits>
#include <utility>

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

/// Binds a struct as a class of read-only fields, with the repr, equality, hash and patterns that a
/// frozen dataclass of these fields would have.
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
  }

  ~ValueClass() { class_.attr("__match_args__") = nb::tuple(names_); }
  ValueClass(const ValueClass&) = delete;
  ValueClass& operator=(const ValueClass&) = delete;

  /// get: a member, or a function of a const T&. doc: as a comment, without a full stop.
  template <class Get>
  ValueClass& field(const char* name, Get get, const char* doc = "") {
    if constexpr (std::is_member_object_pointer_v<Get>) {
      class_.def_ro(name, get, doc);
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

 private:
  nb::class_<T> class_;
  nb::list names_;
};

}  // namespace shardwise::python
