#include "core/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <utility>

namespace penstock {
namespace {

// Where this thread goes on after a fault under guard. Volatile, because only the signal handler reads it: without that the
// compiler may see that nobody does and leave the store out.
thread_local sigjmp_buf* volatile guard_exit = nullptr;
struct sigaction previous_handler;

void on_bus_error(int signal, siginfo_t* info, void* context) {
  if (guard_exit != nullptr) {
    // Whoever called this handler (the thread sanitizer does) may have blocked signals for the time it takes; it never returns.
    pthread_sigmask(SIG_SETMASK, &static_cast<const ucontext_t*>(context)->uc_sigmask, nullptr);
    siglongjmp(*guard_exit, 1);
  }
  // Not ours: behave as if this handler did not exist.
  if ((previous_handler.sa_flags & SA_SIGINFO) != 0 && previous_handler.sa_sigaction != nullptr) {
    previous_handler.sa_sigaction(signal, info, context);
  } else if (previous_handler.sa_handler != SIG_DFL && previous_handler.sa_handler != SIG_IGN) {
    previous_handler.sa_handler(signal);
  } else {
    sigaction(signal, &previous_handler, nullptr);  // the faulting instruction runs again, now without us
  }
}

// Called whenever a file is opened, because others (Python's faulthandler) may have put their own handler in our place meanwhile.
// Two threads at once do the same thing twice, which does no harm; a lock could be held for ever in a forked child.
void install_handler() {
  struct sigaction current = {};
  sigaction(SIGBUS, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == on_bus_error) return;
  previous_handler = current;
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

void need_size(const std::string& path, std::uint64_t expected, std::uint64_t found) {
  if (found == expected) return;
  throw CorruptError(path + ": expected " + std::to_string(expected) + " bytes, found " + std::to_string(found));
}

#ifdef O_PATH
constexpr int kDirectory = O_PATH;  // the right to list it is not needed
#else
constexpr int kDirectory = O_RDONLY;
#endif

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

// A descriptor of the directory of a path, which must not be a link.
int open_above(const std::string& path) {
  const std::string above = path.substr(0, path.rfind('/') + 1);
  const std::string name = above.substr(0, above.find_last_not_of('/') + 1);  // with a slash behind it, a link would be followed
  const int found = ::open(name.c_str(), kDirectory | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (found >= 0) return found;
  if (errno == ELOOP || errno == ENOTDIR) {
    throw CorruptError(name + ": expected a directory, found a symbolic link or something else; link the whole store");
  }
  throw SystemError(errno, path);
}

}  // namespace

bool guarded(void (*work)(void*), void* context) {
  struct Restore {
    sigjmp_buf* outer = guard_exit;
    ~Restore() { guard_exit = outer; }
  } restore;
  sigjmp_buf here;
  if (sigsetjmp(here, 0) != 0) return false;
  guard_exit = &here;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  work(context);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return true;
}

std::shared_ptr<const File> File::open(const std::string& path, std::uint64_t bytes, FileAccess access, Above above) {
  install_handler();
  const Descriptor directory(above == Above::no_link ? open_above(path) : AT_FDCWD);
  const char* const name = path.c_str() + (above == Above::no_link ? path.rfind('/') + 1 : 0);
  Descriptor descriptor(openat(directory.get(), name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (descriptor.get() < 0) {
    if (errno == ELOOP) throw CorruptError(path + ": expected a file, found a symbolic link");
    throw SystemError(errno, path);
  }
  struct stat info = {};
  if (fstat(descriptor.get(), &info) != 0) throw SystemError(errno, path);
  if (!S_ISREG(info.st_mode)) throw CorruptError(path + ": expected a regular file");
  need_size(path, bytes, static_cast<std::uint64_t>(info.st_size));
  if (access == FileAccess::pread || bytes == 0) {
    return std::shared_ptr<const File>(new File(path, bytes, descriptor.release(), nullptr));
  }
  void* map = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor.get(), 0);
  if (map == MAP_FAILED) throw SystemError(errno, path);
  madvise(map, bytes, MADV_RANDOM);  // advice only: a failure changes nothing
  return std::shared_ptr<const File>(new File(path, bytes, -1, static_cast<const std::byte*>(map)));
}

std::shared_ptr<const File> File::open(const std::string& name, std::uint64_t bytes, std::shared_ptr<const Landing> landing) {
  need_size(name, bytes, landing->size());
  const std::byte* const at = landing->data();
  if (at == nullptr) throw std::logic_error(name + ": the bytes are not in memory");
  const std::shared_ptr<File> file(new File(name, bytes, -1, at));
  file->landing_ = std::move(landing);
  return file;
}

File::~File() {
  if (map_ != nullptr && !is_landed()) munmap(const_cast<std::byte*>(map_), bytes_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool File::has_its_size() const {
  if (is_landed()) return true;
  struct stat info = {};
  return ::stat(path_.c_str(), &info) == 0 && static_cast<std::uint64_t>(info.st_size) == bytes_;
}

void File::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > bytes_ || out.size() > bytes_ - offset) {
    throw CorruptError(path_ + ": expected at most " + std::to_string(bytes_) + " bytes, asked for offset " +
                       std::to_string(offset) + " and " + std::to_string(out.size()) + " bytes");
  }
  if (out.empty()) return;
  if (map_ != nullptr) {
    auto copy = [&] { std::memcpy(out.data(), map_ + offset, out.size()); };
    if (!run_guarded(copy)) throw TruncatedError(path_ + ": the file was cut while it was read");
    return;
  }
  for (std::size_t done = 0; done < out.size();) {
    const ssize_t got = pread(descriptor_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw SystemError(errno, path_);
    if (got == 0)
      throw TruncatedError(path_ + ": expected " + std::to_string(bytes_) + " bytes, the file was cut while it was read");
    done += static_cast<std::size_t>(got);
  }
}

}  // namespace penstock
