#include <nanobind/stl/optional.h>

#include <algorithm>

#include "bind/array.h"
#include "core/crc32c.h"
#include "core/file.h"
#include "core/thread_pool.h"

namespace penstock::bind {

using namespace nb::literals;

namespace {

using Bytes = Array<const std::uint8_t>;

std::span<const std::byte> bytes(const Bytes& data) { return std::as_bytes(span(data)); }

}  // namespace

void bind_checksum(nb::module_& m) {
  nb::enum_<CrcPath>(m, "CrcPath", "A way to compute crc32c; both give the same value.")
      .value("PORTABLE", CrcPath::portable)
      .value("HARDWARE", CrcPath::hardware);
  m.def("best_crc_path", &best_crc_path, "The fastest path of this processor.");
  m.def(
      "crc32c",
      [](Bytes data, std::uint32_t before, std::optional<CrcPath> path) {
        const CrcPath chosen = path.value_or(best_crc_path());
        if (chosen == CrcPath::hardware && best_crc_path() != CrcPath::hardware) {
          throw std::invalid_argument("this processor has no crc32c instruction");
        }
        const nb::gil_scoped_release free;
        return crc32c(bytes(data), before, chosen);
      },
      "data"_a.noconvert(), "before"_a = 0, "path"_a = nb::none(),
      "The crc32c of data, continued from the crc of what came before.");
  m.def(
      "crc32c_spans",
      [](Bytes data, Array<const std::uint64_t> ends, Array<std::uint32_t> out) {
        need_same_length(ends.size(), out.size());
        const nb::gil_scoped_release free;
        std::uint64_t start = 0;
        for (std::size_t i = 0; i < out.size(); ++i) {
          const std::uint64_t end = ends.data()[i];
          if (end < start || end > data.size()) throw std::invalid_argument("expected rising ends within the data");
          out.data()[i] = crc32c(bytes(data).subspan(start, end - start));
          start = end;
        }
      },
      "data"_a.noconvert(), "ends"_a.noconvert(), "out"_a.noconvert(), "Fill out with the crc32c of consecutive spans of data.");

  m.def(
      "find_bad_page",
      [](Bytes data, std::size_t page_bytes, Array<const std::uint32_t> crcs, Array<const std::int64_t> pages) {
        const std::span<const std::byte> all = bytes(data);
        if (page_bytes == 0) throw std::invalid_argument("expected page_bytes of at least 1, got 0");
        need_same_length(all.empty() ? 0 : (all.size() - 1) / page_bytes + 1, crcs.size());
        const nb::gil_scoped_release free;
        need_below(span(pages), crcs.size());
        std::int64_t bad = -1;
        auto look = [&] {
          for (const std::int64_t page : span(pages)) {
            const std::size_t begin = static_cast<std::size_t>(page) * page_bytes;
            if (crc32c(all.subspan(begin, std::min(page_bytes, all.size() - begin))) == crcs.data()[page]) continue;
            bad = page;
            return;
          }
        };
        keep_guard();
        const Fault fault = run_guarded(look);
        if (fault.happened) fail_in_memory(fault.at);
        return bad;
      },
      "data"_a.noconvert(), "page_bytes"_a, "crcs"_a.noconvert(), "pages"_a.noconvert(),
      "The first of these pages whose crc32c is not the given one, or -1. The data may be a map of a file.");

  nb::class_<ThreadPool>(m, "ThreadPool", "Native threads that share a job. Usable from several threads and after fork.")
      .def(nb::init<std::size_t>(), "threads"_a)
      .def("__len__", &ThreadPool::size)
      .def_static("work_alone", &ThreadPool::work_alone,
                  "From now on this thread does its jobs alone, in every pool: for one of several that work side by side.")
      .def(
          "crc32c_pages",
          [](ThreadPool& self, Bytes data, std::size_t page_bytes, Array<std::uint32_t> out) {
            if (page_bytes == 0) throw std::invalid_argument("expected page_bytes of at least 1, got 0");
            const std::span<const std::byte> all = bytes(data);
            need_same_length(all.empty() ? 0 : (all.size() - 1) / page_bytes + 1, out.size());
            const nb::gil_scoped_release free;
            std::uint32_t* crcs = out.data();
            self.for_each(out.size(), [=](std::size_t page) {
              crcs[page] = crc32c(all.subspan(page * page_bytes, std::min(page_bytes, all.size() - page * page_bytes)));
            });
          },
          "data"_a.noconvert(), "page_bytes"_a, "out"_a.noconvert(), "Fill out with the crc32c of each page of data.");
}

}  // namespace penstock::bind
