#include "core/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

#include "core/read_ahead.h"

#ifdef __linux__
#include <sys/syscall.h>
#endif

namespace penstock {
namespace {

// Where this thread goes on after a fault under guard, and where the fault was. Volatile, because only the signal handler reads
// the first: without that the compiler may see that nothing does and leave the store out.
thread_local sigjmp_buf* volatile guard_exit = nullptr;
thread_local void* volatile guard_fault = nullptr;
thread_local volatile std::sig_atomic_t is_passing_on = 0;

// The handlers found in our place. The last one counts; it is written before its number is, into a slot that is not in use.
constexpr std::size_t kSlots = 8;
struct sigaction found_handlers[kSlots];
std::atomic<std::size_t> num_found{0};

// A SIGBUS that is not ours: behaves as if this handler did not exist. A handler that was installed after ours (faulthandler's)
// may raise the signal again, for the handler before it, which is this one: it has had its turn then, and the process ends.
void pass_on(int signal, siginfo_t* info, void* context) {
  const struct sigaction& next = found_handlers[(num_found.load(std::memory_order_acquire) - 1) % kSlots];
  const bool is_plain = (next.sa_flags & SA_SIGINFO) == 0;
  if (is_passing_on != 0 || (is_plain && (next.sa_handler == SIG_DFL || next.sa_handler == SIG_IGN))) {
    std::signal(signal, SIG_DFL);  // the faulting instruction runs again, now without us
    return;
  }
  is_passing_on = 1;
  is_plain ? next.sa_handler(signal) : next.sa_sigaction(signal, info, context);
  is_passing_on = 0;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  if (guard_exit == nullptr) return pass_on(signal, info, context);
  guard_fault = info->si_code > 0 ? info->si_addr : nullptr;  // a signal that was raised by a call has no address
  // The caller of this handler (the thread sanitizer) may have blocked signals for the time it takes; it never returns.
  pthread_sigmask(SIG_SETMASK, &static_cast<const ucontext_t*>(context)->uc_sigmask, nullptr);
  siglongjmp(*guard_exit, 1);
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_bus_error;
}

// Two threads at once do the same thing twice, which does no harm; a lock could stay held in a forked child.
void install_handler() {
  struct sigaction current = {};
  sigaction(SIGBUS, nullptr, &current);
  if (is_ours(current)) return;
  const std::size_t number = num_found.load(std::memory_order_relaxed);
  found_handlers[number % kSlots] = current;
  num_found.store(number + 1, std::memory_order_release);
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

std::uint64_t page_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

constexpr int kAppendLooks = 100;
constexpr std::chrono::milliseconds kAppendPause(5);

FileVersion version_of(const struct stat& info) {
#ifdef __APPLE__
  const timespec& time = info.st_mtimespec;
#else
  const timespec& time = info.st_mtim;
#endif
  const std::int64_t written = std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  return {static_cast<std::uint64_t>(info.st_dev), static_cast<std::uint64_t>(info.st_ino), static_cast<std::uint64_t>(written)};
}

bool is_same_file(const FileVersion& a, const FileVersion& b) { return a.device == b.device && a.inode == b.inode; }

std::string sizes_in_words(const std::string& path, std::uint64_t expected, std::uint64_t found) {
  return path + ": expected " + std::to_string(expected) + " bytes, found " + std::to_string(found);
}

void need_size(const std::string& path, std::uint64_t expected, std::uint64_t found) {
  if (found != expected) throw CorruptError(sizes_in_words(path, expected, found));
}

// That a name stands for the version that was seen first.
void need_version(const std::string& path, std::uint64_t bytes, const FileVersion& first, const struct stat& info) {
  if (!first.is_known()) return;
  const FileVersion now = version_of(info);
  if (!is_same_file(first, now)) {
    throw ChangedError(path + ": the file was replaced by another one since it was first opened; open the data again");
  }
  const auto found = static_cast<std::uint64_t>(info.st_size);
  if (found < bytes) throw TruncatedError(sizes_in_words(path, bytes, found) + "; the file was cut since it was first opened");
  if (found > bytes || now.written_ns != first.written_ns) {
    throw ChangedError(path + ": the file was written to since it was first opened; open the data again");
  }
}

// The file that is mapped at an address: the name it has now, and the byte of it.
struct MappedByte {
  std::string path;
  std::uint64_t offset;
};

std::optional<MappedByte> mapped_byte(const std::byte* address) {
  std::ifstream maps("/proc/self/maps");
  const auto wanted = reinterpret_cast<std::uint64_t>(address);
  for (std::string line; std::getline(maps, line);) {
    std::uint64_t start = 0, end = 0, offset = 0;
    int name = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %*s %*s %n", &start, &end, &offset, &name) < 3)
      continue;
    if (wanted < start || wanted >= end) continue;
    if (name == 0 || static_cast<std::size_t>(name) >= line.size() || line[static_cast<std::size_t>(name)] != '/') break;
    return MappedByte{line.substr(static_cast<std::size_t>(name)), offset + (wanted - start)};
  }
  return std::nullopt;
}

#ifdef O_PATH
constexpr int kDirectory = O_PATH;  // the right to list it is not needed
#else
constexpr int kDirectory = O_RDONLY;
#endif

#ifdef CLOCK_MONOTONIC_COARSE
constexpr clockid_t kCoarseClock = CLOCK_MONOTONIC_COARSE;
#else
constexpr clockid_t kCoarseClock = CLOCK_MONOTONIC;
#endif

// What direct reads of a file must be multiples of; 0 if it has none.
std::uint64_t direct_alignment([[maybe_unused]] int descriptor) {
  [[maybe_unused]] constexpr std::uint64_t kAnyDisk = 4096;
#if defined(STATX_DIOALIGN) && defined(SYS_statx)
  struct statx info = {};
  // By its number: C libraries older than glibc 2.28 have no function for it.
  const long failed = syscall(SYS_statx, descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info);
  if (failed == 0 && (info.stx_mask & STATX_DIOALIGN) != 0) {
    if (info.stx_dio_offset_align == 0) return 0;
    return std::max<std::uint64_t>(info.stx_dio_offset_align, info.stx_dio_mem_align);
  }
#endif
#ifdef O_DIRECT
  return kAnyDisk;
#else
  return 0;
#endif
}

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

// Reads bytes [offset, offset + out.size()) of an open file that has that many bytes.
void read_descriptor(int descriptor, const std::string& path, std::uint64_t bytes, std::uint64_t offset,
                     std::span<std::byte> out) {
  for (std::size_t done = 0; done < out.size();) {
    const ssize_t got = pread(descriptor, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw SystemError(errno, path, "byte " + std::to_string(offset + done) + " could not be read");
    if (got == 0) throw TruncatedError(sizes_in_words(path, bytes, offset + done) + ": the file was cut while it was read");
    done += static_cast<std::size_t>(got);
  }
}

// A descriptor of the directory of a path, which must not be a link.
int open_above(const std::string& path) {
  const std::string above = path.substr(0, path.rfind('/') + 1);
  const std::string name = above.substr(0, above.find_last_not_of('/') + 1);  // with a slash behind it, a link would be followed
  const int found = ::open(name.c_str(), kDirectory | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (found >= 0) return found;
  if (errno == ELOOP || errno == ENOTDIR) {
    throw CorruptError(name + ": expected a directory, found a symbolic link or something else; link the whole store");
  }
  throw SystemError(errno, path, "the directory of the file could not be opened");
}

}  // namespace

Fault guarded(void (*work)(void*), void* context) {
  struct Restore {
    sigjmp_buf* outer = guard_exit;
    ~Restore() { guard_exit = outer; }
  } restore;
  sigjmp_buf here;
  if (sigsetjmp(here, 0) != 0) return {true, static_cast<const std::byte*>(guard_fault)};
  guard_exit = &here;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  work(context);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return {};
}

bool Interval::is_due() {
  timespec time = {};
  clock_gettime(kCoarseClock, &time);
  const std::int64_t now = std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  std::int64_t next = next_ns_.load(std::memory_order_relaxed);
  return now >= next && next_ns_.compare_exchange_strong(next, now + 10'000'000, std::memory_order_relaxed);
}

void keep_guard() {
  static Interval interval;
  if (interval.is_due()) install_handler();
}

void fail_in_memory(const std::byte* fault) {
  const std::optional<MappedByte> mapped = mapped_byte(fault);
  if (!mapped) throw TruncatedError("memory that is being read belongs to a file that was cut, or whose disk failed");
  struct stat info = {};
  if (::stat(mapped->path.c_str(), &info) != 0 || static_cast<std::uint64_t>(info.st_size) <= mapped->offset) {
    throw TruncatedError(mapped->path + ": the file was cut while memory that it is mapped to was read, at byte " +
                         std::to_string(mapped->offset));
  }
  throw SystemError(EIO, mapped->path, "byte " + std::to_string(mapped->offset) + " of a map could not be read");
}

std::shared_ptr<const File> File::open(const std::string& path, std::uint64_t bytes, FileAccess access,
                                       const FileVersion& version, Above above) {
  install_handler();
  const Descriptor directory(above == Above::no_link ? open_above(path) : AT_FDCWD);
  const char* const name = path.c_str() + (above == Above::no_link ? path.rfind('/') + 1 : 0);
  Descriptor descriptor(openat(directory.get(), name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (descriptor.get() < 0) {
    if (errno == ELOOP) throw CorruptError(path + ": expected a file, found a symbolic link");
    throw SystemError(errno, path, "the file could not be opened");
  }
  struct stat info = {};
  if (fstat(descriptor.get(), &info) != 0) throw SystemError(errno, path, "the file could not be looked at");
  if (!S_ISREG(info.st_mode)) throw CorruptError(path + ": expected a regular file");
  need_version(path, bytes, version, info);
  need_size(path, bytes, static_cast<std::uint64_t>(info.st_size));
  const std::shared_ptr<File> file(new File(path, bytes, version_of(info)));
  if (access != FileAccess::map || bytes == 0) {
    file->descriptor_ = descriptor.release();
    if (access == FileAccess::direct && bytes > 0) file->read_past_cache();
    return file;
  }
  file->map(descriptor.get());
  // The copy of the last page is right if the file was whole after it was made.
  if (fstat(descriptor.get(), &info) != 0) throw SystemError(errno, path, "the file could not be looked at");
  if (static_cast<std::uint64_t>(info.st_size) > bytes) {
    throw ChangedError(path + ": the file was written to while it was opened; open the data again");
  }
  need_size(path, bytes, static_cast<std::uint64_t>(info.st_size));
  return file;
}

void File::read_past_cache() {
  alignment_ = direct_alignment(descriptor_);
#ifdef O_DIRECT
  // This also leaves nonblocking mode, in which a queue would give up instead of waiting.
  if (alignment_ != 0 && fcntl(descriptor_, F_SETFL, O_DIRECT) == 0) {
    ahead_ = AheadFile::of(version_, descriptor_);
    return;
  }
  if (alignment_ != 0 && errno != EINVAL) throw SystemError(errno, path_, "the file could not be opened for direct reads");
#endif
  throw SystemError(EOPNOTSUPP, path_, "the file system has no direct reads: open the data with io='pread' or io='map'");
}

void File::map(int descriptor) {
  const std::uint64_t page = page_bytes();
  const std::uint64_t before = (bytes_ - 1) / page * page;
  void* const whole = mmap(nullptr, before + page, PROT_READ, before == 0 ? MAP_PRIVATE : MAP_SHARED, descriptor, 0);
  if (whole == MAP_FAILED) throw SystemError(errno, path_, "the file could not be mapped");
  map_ = static_cast<const std::byte*>(whole);
  madvise(whole, before + page, MADV_RANDOM);  // advice only: a failure changes nothing
  std::byte* const last = static_cast<std::byte*>(whole) + before;
  const int fixed = MAP_PRIVATE | MAP_FIXED;
  if (mmap(last, page, PROT_READ | PROT_WRITE, fixed, descriptor, static_cast<off_t>(before)) == MAP_FAILED) {
    throw SystemError(errno, path_, "the end of the file could not be mapped");
  }
  std::byte* const word = last + page - sizeof(mark_);
  auto copy = [&] {
    if (before + page - bytes_ >= sizeof(mark_)) std::memcpy(word, kFileMark.data(), sizeof(mark_));
    *static_cast<volatile std::byte*>(last) = *last;  // writing is what makes the copy
    std::memcpy(&mark_, word, sizeof(mark_));
  };
  const Fault fault = run_guarded(copy);
  if (fault.happened) fail(fault.at);
  sentinel_ = word;
  mprotect(last, page, PROT_READ);  // nothing writes there: a failure changes nothing
}

std::shared_ptr<const File> File::open(const std::string& name, std::uint64_t bytes, std::shared_ptr<const Landing> landing) {
  need_size(name, bytes, landing->size());
  const std::byte* const at = landing->data();
  if (at == nullptr) throw std::logic_error(name + ": the bytes are not in memory");
  const std::shared_ptr<File> file(new File(name, bytes, {}));
  file->map_ = at;
  file->landing_ = std::move(landing);
  return file;
}

File::~File() {
  if (map_ != nullptr && !is_landed())
    munmap(const_cast<std::byte*>(map_), (bytes_ + page_bytes() - 1) / page_bytes() * page_bytes());
  if (descriptor_ >= 0) ::close(descriptor_);
}

void File::fail(const std::byte* fault) const {
  const std::optional<MappedByte> now = mapped_byte(map_);
  struct stat info = {};
  const bool is_known = ::stat(now ? now->path.c_str() : path_.c_str(), &info) == 0 && is_same_file(version_of(info), version_);
  const auto found = static_cast<std::uint64_t>(info.st_size);
  if (is_known && found < bytes_)
    throw TruncatedError(sizes_in_words(path_, bytes_, found) + ": the file was cut while it was read");
  if (fault == nullptr || (is_known && version_of(info).written_ns != version_.written_ns)) {
    throw ChangedError(path_ + ": the file was cut or rewritten since it was opened; open the data again");
  }
  const std::string byte = "byte " + std::to_string(contains(fault) ? static_cast<std::uint64_t>(fault - map_) : 0);
  if (is_known) throw SystemError(EIO, path_, byte + " could not be read");
  throw SystemError(EIO, path_, byte + " could not be read: the file, which has no name any more, was cut, or the disk failed");
}

void File::need_unwritten() const {
  if (is_landed()) return;
  // The system changes the time of a file before it appends to it: where the new time was seen with the old size, it was an
  // append if the file then grows and has that time still.
  std::uint64_t seen_ns = 0;
  for (int looks = 0; looks < kAppendLooks; ++looks) {
    struct stat info = {};
    const int failed = descriptor_ >= 0 ? fstat(descriptor_, &info) : ::stat(path_.c_str(), &info);
    if (failed != 0) return;
    const FileVersion now = version_of(info);
    if (!is_same_file(now, version_) || now.written_ns == version_.written_ns) return;
    const bool is_same_write = seen_ns == 0 || now.written_ns == seen_ns;
    const auto size = static_cast<std::uint64_t>(info.st_size);
    if (size < bytes_ && is_direct()) fail_short(size);
    if (size < bytes_ || (size > bytes_ && is_same_write)) return;  // cut, which a read finds out; or appended to
    if (!is_same_write) break;
    seen_ns = now.written_ns;
    std::this_thread::sleep_for(kAppendPause);
  }
  throw ChangedError(path_ + ": the file was written to since it was opened; open the data again");
}

void File::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > bytes_ || out.size() > bytes_ - offset) {
    throw CorruptError(path_ + ": expected at most " + std::to_string(bytes_) + " bytes, asked for offset " +
                       std::to_string(offset) + " and " + std::to_string(out.size()) + " bytes");
  }
  if (out.empty()) return;
  if (map_ != nullptr) {
    auto copy = [&] { std::memcpy(out.data(), map_ + offset, out.size()); };
    const Fault fault = run_guarded(copy);
    if (fault.happened) fail(fault.at);
    return;
  }
  if (!is_direct()) return read_descriptor(descriptor_, path_, bytes_, offset, out);
  Stage stage;
  for (std::size_t done = 0; done < out.size();) {
    Stage::Want want{this, offset + done, std::min<std::uint64_t>(Stage::kBytes, out.size() - done)};
    stage.bring({&want, 1});
    std::memcpy(out.data() + done, want.at, want.bytes);
    done += want.bytes;
  }
}

void File::fail_short(std::uint64_t found) const {
  throw TruncatedError(sizes_in_words(path_, bytes_, found) + ": the file was cut while it was read");
}

// A run of bytes of a file that is read for one want or several, and its place in the buffer.
struct Stage::Extent {
  const File* file;
  std::uint64_t start;
  std::uint64_t stop;    // aligned, both
  std::uint64_t needed;  // up to here there must be bytes
  std::uint64_t place;
};

std::shared_ptr<const DirectFile> DirectFile::open([[maybe_unused]] const std::string& path) {
#ifdef O_DIRECT
  auto made = std::make_shared<DirectFile>();
  made->path = path;
  made->descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  struct stat info = {};
  if (made->descriptor < 0 || fstat(made->descriptor, &info) != 0 || !S_ISREG(info.st_mode)) return nullptr;
  made->alignment = direct_alignment(made->descriptor);
  if (made->alignment == 0 || fcntl(made->descriptor, F_SETFL, O_DIRECT) != 0) return nullptr;
  made->bytes = static_cast<std::uint64_t>(info.st_size);
  made->version = version_of(info);
  return made;
#else
  return nullptr;
#endif
}

DirectFile::~DirectFile() {
  if (descriptor >= 0) ::close(descriptor);
}

struct Stage::Held {
  const File* file;
  std::shared_ptr<const AheadFile::Extent> extent;
  std::uint64_t used;
};

// Whether bytes were read ahead.
bool Stage::find_ahead(Want& want) {
  AheadFile& ahead = *want.file->ahead_;
  const auto is_here = [&](const Held& held) { return held.file == want.file && held.extent->holds(want.offset, want.bytes); };
  auto found = std::find_if(held_.begin(), held_.end(), is_here);
  if (found == held_.end()) {
    if (ahead.is_empty()) return false;
    std::shared_ptr<const AheadFile::Extent> extent = ahead.find(want.offset, want.bytes);
    if (extent == nullptr) return false;
    held_.push_back({want.file, std::move(extent), 0});
    found = held_.end() - 1;
  }
  found->used += want.used;
  want.at = found->extent->data + (want.offset - found->extent->start);
  return true;
}

void Stage::need_unwritten() const {
  for (const File* const file : files_) file->need_unwritten();
}

Stage::Stage() : queue_(DiskQueue::shared()) {}
Stage::~Stage() = default;

void Stage::bring(std::span<Want> wants) {
  constexpr std::uint64_t kMostAtOnce = 512 << 10;  // of one read: more are several, at the same time
  extents_.clear();
  reads_.clear();
  held_.clear();
  files_.clear();
  for (const Want& want : wants) {
    if (want.bytes > 0 && std::find(files_.begin(), files_.end(), want.file) == files_.end()) files_.push_back(want.file);
  }
  std::uint64_t end = 0;
  for (Want& want : wants) {
    want.at = nullptr;
    if (want.bytes == 0 || find_ahead(want)) continue;
    const std::uint64_t unit = want.file->alignment_;
    const std::uint64_t apart = direct_memory_unit(unit);
    const std::uint64_t stop = want.offset + want.bytes;
    const std::uint64_t first = want.offset / unit * unit;
    const std::uint64_t last = (stop + unit - 1) / unit * unit;
    Extent* const before = extents_.empty() ? nullptr : &extents_.back();
    if (before != nullptr && before->file == want.file && first >= before->start && first <= before->stop) {  // a neighbour
      end += std::max(before->stop, last) - before->stop;
      before->stop = std::max(before->stop, last);
      before->needed = std::max(before->needed, stop);
      continue;
    }
    end = (end + apart - 1) / apart * apart;
    extents_.push_back({want.file, first, last, stop, end});
    end += last - first;
  }
  for (const Held& held : held_) held.file->ahead_->use(*held.extent, held.used);
  if (extents_.empty()) return;
  if (buffer_ == nullptr || buffer_.get_deleter().bytes < end) {
    buffer_.reset();
    buffer_ = take_disk_memory(end);
  }
  std::byte* const memory = buffer_.get();
  for (const Extent& extent : extents_) {
    for (std::uint64_t at = extent.start; at < extent.stop; at += kMostAtOnce) {
      reads_.push_back({extent.file->descriptor_, at, memory + extent.place + (at - extent.start),
                        std::min(kMostAtOnce, extent.stop - at), extent.file->alignment_});
    }
  }
  queue_->read(reads_);
  std::size_t next = 0;
  for (const Extent& extent : extents_) {
    for (std::uint64_t at = extent.start; at < extent.stop; at += kMostAtOnce, ++next) {
      const DiskRead& read = reads_[next];
      const std::uint64_t found = at + read.got;
      if (read.error != 0) {
        throw SystemError(read.error, extent.file->path_, "byte " + std::to_string(found) + " could not be read");
      }
      if (found < std::min(extent.needed, at + read.bytes)) extent.file->fail_short(found);
    }
  }
  next = 0;
  for (Want& want : wants) {
    if (want.bytes == 0 || want.at != nullptr) continue;
    const std::uint64_t unit = want.file->alignment_;
    const auto is_in = [&](const Extent& extent) {
      return extent.file == want.file && want.offset / unit * unit >= extent.start && want.offset + want.bytes <= extent.stop;
    };
    if (!is_in(extents_[next])) ++next;
    want.at = memory + extents_[next].place + (want.offset - extents_[next].start);
  }
}

void read_listed(const std::string& path, std::uint64_t bytes, const FileVersion& version, std::uint64_t offset,
                 std::span<std::byte> out) {
  const auto changed = [&](const std::string& found) {
    return ChangedError(path + ": expected the file that was listed, found " + found + "; open the data again");
  };
  const Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (descriptor.get() < 0) {
    if (errno == ELOOP || errno == ENOTDIR || errno == ENXIO) throw changed("something else");
    throw SystemError(errno, path, errno == ENOENT ? "the file was there when it was listed" : "the file could not be opened");
  }
  struct stat info = {};
  for (int looks = 0; looks < 2; ++looks) {  // before it is read, and after that
    if (fstat(descriptor.get(), &info) != 0) throw SystemError(errno, path, "the file could not be looked at");
    if (!S_ISREG(info.st_mode)) throw changed("something else");
    if (const auto found = static_cast<std::uint64_t>(info.st_size); found != bytes) {
      throw changed(std::to_string(found) + " bytes instead of " + std::to_string(bytes));
    }
    const FileVersion now = version_of(info);
    if (version.is_known() && !is_same_file(version, now)) throw changed("another one of that name");
    if (version.is_known() && version.written_ns != now.written_ns) throw changed("one that was written to since");
    if (looks == 0) read_descriptor(descriptor.get(), path, bytes, offset, out);
  }
}

}  // namespace penstock
