// What the core throws besides the standard exceptions; native/bind turns each into the Python exception of the same name.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

namespace penstock {

// What helps when the system refuses a call, where that is known.
inline const char* remedy(int code) {
  switch (code) {
    case EMFILE: return "; raise the limit of open files (ulimit -n) or open fewer sources";
    case ENFILE: return "; the system has no more open files (fs.file-max)";
    case ENOMEM: return "; free memory, or raise the number of maps (vm.max_map_count)";
    case ESTALE: return "; the server has removed or replaced the file: open the data again";
    case EIO: return "; the disk failed: look at the log of the system, and restore the file";
    default: return "";
  }
}

// A name found in data, for a message: printable, and not long.
inline std::string shown(std::string_view name) {
  std::string made;
  for (const char letter : name.substr(0, 100)) made += letter >= ' ' && letter <= '~' ? letter : '?';
  return "'" + made + (name.size() > 100 ? "...'" : "'");
}

// The system refused a call: errno, the path it was about, and what failed and may help, in words.
class SystemError : public std::runtime_error {
 public:
  SystemError(int code, std::string path, const std::string& doing)
      : std::runtime_error(path + ": " + doing),
        code(code),
        path(std::move(path)),
        words(doing + ": " + std::strerror(code) + remedy(code)) {}
  int code;
  std::string path;
  std::string words;
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

// A file is not of the kind it was taken for.
class FormatError : public CorruptError {
 public:
  using CorruptError::CorruptError;
};

// A picture that cannot be decoded: damaged, cut, of an unknown kind, or larger than allowed. The message is the reason.
class ImageError : public CorruptError {
 public:
  using CorruptError::CorruptError;
};

// A file is not the one that was opened first, or was written to since.
class ChangedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// More bytes than a batch may have.
class BatchTooLargeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace penstock
