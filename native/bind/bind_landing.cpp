#include <algorithm>
#include <chrono>
#include <cstring>

#include "bind/array.h"
#include "bind/landing.h"

namespace penstock::bind {

using namespace nb::literals;

namespace {

// The bytes of any object that has them one after the other.
class Contiguous {
 public:
  explicit Contiguous(nb::handle from) {
    if (PyObject_GetBuffer(from.ptr(), &buffer_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~Contiguous() { PyBuffer_Release(&buffer_); }
  Contiguous(const Contiguous&) = delete;
  Contiguous& operator=(const Contiguous&) = delete;

  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)};
  }

 private:
  Py_buffer buffer_;
};

void write(const BoundLanding& self, std::uint64_t offset, nb::handle data) {
  const Contiguous from(data);
  const nb::gil_scoped_release free;
  self.landing->write(offset, from.bytes());
}

nb::tuple receive(const BoundLanding& self, int socket, std::uint64_t start, std::uint64_t stop, double seconds) {
  const auto most = std::chrono::milliseconds(static_cast<std::int64_t>(std::clamp(seconds, 0.0, 3600.0) * 1000));
  Received received{};
  {
    const nb::gil_scoped_release free;
    received = self.landing->receive(socket, start, stop, most);
  }
  return nb::make_tuple(received.bytes, received.is_open);
}

nb::bytes read(const BoundLanding& self, std::uint64_t start, std::uint64_t stop) {
  const Landing& landing = *self.landing;
  const std::byte* const at = landing.data();
  if (at == nullptr) throw std::invalid_argument("the bytes are not in memory");
  if (start > stop || stop > landing.size()) {
    throw std::invalid_argument("expected a range within [0, " + std::to_string(landing.size()) + "), got [" +
                                std::to_string(start) + ", " + std::to_string(stop) + ")");
  }
  return nb::bytes(at + start, stop - start);
}

}  // namespace

void bind_landing(nb::module_& m) {
  nb::class_<BoundLanding>(
      m, "Landing",
      "Memory for ranges of an object of ``size`` bytes; costs nothing before the first write. Safe to use from "
      "several threads for different ranges.")
      .def(
          "__init__", [](BoundLanding* self, std::uint64_t bytes) { new (self) BoundLanding{std::make_shared<Landing>(bytes)}; },
          "bytes"_a)
      .def_prop_ro("is_mapped", [](const BoundLanding& self) { return self.landing->data() != nullptr; })
      .def_prop_ro("size", [](const BoundLanding& self) { return self.landing->size(); })
      .def(
          "expect",
          [](const BoundLanding& self, std::uint64_t start, std::uint64_t stop) {
            const nb::gil_scoped_release free;
            self.landing->expect(start, stop);
          },
          "start"_a, "stop"_a, "Say that all of a range is going to be written, which then costs less.")
      .def("write", &write, "offset"_a, "data"_a, "Copy the bytes of a contiguous buffer to where they lie in the object.")
      .def("receive", &receive, "socket"_a, "start"_a, "stop"_a, "seconds"_a,
           nb::sig("def receive(self, socket: int, start: int, stop: int, seconds: float) -> tuple[int, bool]"),
           "Receive bytes of a connected stream socket straight to [start, stop), until all came, the stream ends or breaks, or "
           "the time is over: how many came, and whether the stream goes on.")
      .def(
          "release",
          [](const BoundLanding& self, std::uint64_t start, std::uint64_t stop) {
            const nb::gil_scoped_release free;
            self.landing->release(start, stop);
          },
          "start"_a, "stop"_a, "Give whole pages back to the system; no thread may read them meanwhile, and they are zeros then.")
      .def(
          "drop",
          [](const BoundLanding& self) {
            const nb::gil_scoped_release free;
            self.landing->drop();
          },
          "Give everything back to the system; no thread may read meanwhile, and the next write begins anew.")
      .def("read", &read, "start"_a, "stop"_a, "A copy of the bytes [start, stop); zeros where none were written.")
      .def(
          "resident",
          [](const BoundLanding& self) {
            const nb::gil_scoped_release free;
            return self.landing->resident();
          },
          "Bytes of the pages that are in memory.");
}

}  // namespace penstock::bind
