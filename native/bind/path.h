// Names of files as arguments: what the system calls them, whatever Python's text is.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "core/file.h"

namespace penstock::bind {

// The bytes of a name. Python gives a str, in which bytes that are not UTF-8 are lone surrogates, or bytes.
struct PathName {
  std::string bytes;
};

inline std::vector<std::string> names_of(const std::vector<PathName>& paths) {
  std::vector<std::string> made;
  made.reserve(paths.size());
  for (const PathName& path : paths) made.push_back(path.bytes);
  return made;
}

// How files are read, as Python calls it.
inline FileAccess file_access(const std::string& name) {
  if (name == "map") return FileAccess::map;
  if (name == "pread") return FileAccess::pread;
  if (name == "direct") return FileAccess::direct;
  throw std::invalid_argument("expected map, pread or direct, got " + shown(name));
}

}  // namespace penstock::bind

namespace nanobind::detail {

template <>
struct type_caster<penstock::bind::PathName> {
  NB_TYPE_CASTER(penstock::bind::PathName, const_name("str | bytes"))

  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
    const bool is_text = PyUnicode_Check(source.ptr()) != 0;
    if (!is_text && PyBytes_Check(source.ptr()) == 0) return false;
    const object encoded = is_text ? steal(PyUnicode_EncodeFSDefault(source.ptr())) : borrow(source);
    if (!encoded.is_valid()) {
      PyErr_Clear();
      return false;
    }
    value.bytes.assign(PyBytes_AsString(encoded.ptr()), static_cast<std::size_t>(PyBytes_Size(encoded.ptr())));
    return true;
  }
};

}  // namespace nanobind::detail
