// What the core throws besides the standard exceptions; native/bind turns each into the Python exception of the same name.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace penstock {

// The system refused a call: errno and the path it was about.
class SystemError : public std::runtime_error {
 public:
  SystemError(int code, std::string path) : std::runtime_error(path), code(code), path(std::move(path)) {}
  int code;
  std::string path;
};

// Bytes that cannot be right: a bad checksum, a length that does not fit, a value out of range.
class CorruptError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A file became shorter while it was being read.
class TruncatedError : public CorruptError {
 public:
  using CorruptError::CorruptError;
};

// More bytes than a batch may have.
class BatchTooLargeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace penstock
