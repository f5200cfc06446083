#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#ifdef __APPLE__
#include <sys/mount.h>
#include <sys/param.h>
#else
#include <sys/vfs.h>
#endif

#include <algorithm>
#include <system_error>

#include "bind/array.h"
#include "bind/buffer.h"
#include "bind/landing.h"
#include "bind/path.h"
#include "bind/varying.h"
#include "core/codec.h"
#include "core/store_reader.h"
#include "core/utf8.h"

namespace penstock::bind {

using namespace nb::literals;

namespace {

using Bytes = Array<const std::uint8_t>;
using BytesOut = Array<std::uint8_t>;
using Words = nb::ndarray<const std::uint64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::span<const std::byte> in_bytes(const Bytes& data) { return std::as_bytes(span(data)); }
std::span<const std::byte> in_bytes(const nb::bytes& data) { return {static_cast<const std::byte*>(data.data()), data.size()}; }
std::byte* out_bytes(const BytesOut& data) { return reinterpret_cast<std::byte*>(data.data()); }

constexpr std::size_t kMostProblems = 1000;  // of a chunk: a hostile one may have very many

void raise_as(const char* name, const std::string& message) {
  PyErr_SetString(nb::module_::import_("penstock.errors").attr(name).ptr(), with_escapes(message).c_str());
}

// The core's exceptions as those of penstock.errors.
void translate(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const TruncatedError& e) {
    raise_as("TruncatedError", e.what());
  } catch (const FormatError& e) {
    raise_as("FormatError", e.what());
  } catch (const ImageError& e) {
    raise_as("ImageError", e.what());
  } catch (const CorruptError& e) {
    raise_as("CorruptError", e.what());
  } catch (const ChangedError& e) {
    raise_as("SourceChangedError", e.what());
  } catch (const BatchTooLargeError& e) {
    raise_as("BatchTooLargeError", e.what());
  } catch (const SystemError& e) {
    const char* name = e.code == ENOENT ? "MissingError" : "ReadError";
    const nb::object made =
        nb::module_::import_("penstock.errors").attr(name)(e.code, with_escapes(e.words), with_escapes(e.path));
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
  } catch (const std::system_error& e) {
    raise_as("ReadError", std::string("a thread cannot be started: ") + e.what() + "; raise the limit of processes (ulimit -u)");
  }
}

nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>> own(std::vector<std::byte> bytes) {
  auto* kept = new std::vector<std::byte>(std::move(bytes));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<std::byte>*>(p); });
  return {kept->data(), {kept->size()}, owner};
}

void check_ids(const StoreReader& reader, const Ints& ids) { need_below(span(ids), reader.length()); }

std::unique_ptr<StoreReader> make_reader(const PathName& path, std::uint64_t length, const std::vector<PathName>& paths,
                                         const Words& chunks, const Words& segments, const nb::bytes& dataset,
                                         const std::string& access, bool verify, std::uint64_t batch_bytes,
                                         const std::optional<std::vector<BoundLanding>>& landings, std::uint64_t record_bytes,
                                         const std::vector<std::pair<std::uint32_t, std::string>>& names) {
  if (chunks.shape(1) != 3 || chunks.shape(0) != paths.size() || segments.shape(1) != 4 || dataset.size() != 16) {
    throw std::invalid_argument("expected a path and three numbers per chunk, four per segment, and 16 bytes of identity");
  }
  if (landings && landings->size() != paths.size()) throw std::invalid_argument("expected a landing per chunk");
  std::vector<ChunkFact> facts;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::uint64_t* row = chunks.data() + 3 * i;
    facts.push_back({paths[i].bytes, row[0], static_cast<std::uint32_t>(row[1]), static_cast<std::uint32_t>(row[2]),
                     landings ? (*landings)[i].landing : nullptr});
  }
  std::vector<Segment> pieces;
  for (std::size_t i = 0; i < segments.shape(0); ++i) {
    const std::uint64_t* row = segments.data() + 4 * i;
    pieces.push_back({row[0], row[1], static_cast<std::uint32_t>(row[2]), static_cast<std::uint32_t>(row[3])});
  }
  DatasetId id;
  std::copy_n(in_bytes(dataset).data(), 16, id.begin());
  StoreLimits limits;
  limits.verify = verify;
  limits.batch_bytes = batch_bytes;
  limits.record_bytes = record_bytes;
  return std::make_unique<StoreReader>(path.bytes, length, std::move(facts), std::move(pieces), id,
                                       landings ? FileAccess::map : file_access(access), limits,
                                       FieldNames(names.begin(), names.end()));
}

// Where a plain record is, and what keeps it there; nothing if it is missing.
struct View {
  const std::byte* data = nullptr;
  std::shared_ptr<const void> owner;
};

View view_in(const Chunk& chunk, std::uint32_t field, std::uint64_t stride, std::uint64_t row, std::uint64_t id) {
  const ChunkField* found = chunk.field(field);
  bool present = false;
  auto look = [&] { present = found != nullptr && found->present(row); };
  const Fault missed = run_guarded(look);
  if (missed.happened) chunk.file()->fail(missed.at);
  if (!present) return {};
  if (!found->is_plain() || found->stride != stride || chunk.file()->data() == nullptr || row >= chunk.rows()) {
    throw CorruptError(chunk.path() + ": " + chunk.in_words(field) + ", record " + std::to_string(id) +
                       ": the field is not one of plain records of " + std::to_string(stride) + " bytes");
  }
  auto check = [&] {
    const std::uint64_t page = row / found->rows_per_page;
    if (!found->is_verified(page)) chunk.verify_page(*found, page, id);
    present = chunk.is_whole();
  };
  const Fault fault = run_guarded(check);
  if (fault.happened || !present) chunk.file()->fail(fault.at);
  const std::byte* const data = chunk.file()->data() + found->data_offset + row * stride;
  if (!chunk.file()->is_landed()) return {data, chunk.file()};
  const auto copy =
      std::make_shared<std::vector<std::byte>>(data, data + stride);  // a landing's memory may go before the view does
  return {copy->data(), copy};
}

nb::object view_record(const StoreReader& self, std::uint32_t field, std::uint64_t stride, std::uint64_t id) {
  if (id >= self.length()) throw nb::index_error("the record does not exist");
  const StoreReader::Place place = self.place(field, id);
  View view;
  {
    const nb::gil_scoped_release free;
    self.look_at(place.chunk, [&](const Chunk& chunk) { view = view_in(chunk, field, stride, place.row, id); });
  }
  if (view.owner == nullptr) return nb::none();
  using Owner = std::shared_ptr<const void>;
  const nb::capsule owner(new Owner(view.owner), [](void* p) noexcept { delete static_cast<Owner*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>(view.data, {stride}, owner));
}

OwnArray<std::uint64_t, 2> places(const StoreReader& self, std::uint32_t field, Ints ids) {
  Buffer out = take_buffer(ids.size() * 2 * sizeof(std::uint64_t));
  {
    const nb::gil_scoped_release free;
    check_ids(self, ids);
    auto* to = reinterpret_cast<std::uint64_t*>(out.get());
    for (const std::int64_t id : span(ids)) {
      const StoreReader::Place place = self.place(field, static_cast<std::uint64_t>(id));
      *to++ = place.chunk;
      *to++ = place.row;
    }
  }
  return as_array<std::uint64_t, 2>(std::move(out), {ids.size(), 2});
}

OwnArray<std::uint64_t, 2> page_extents(const StoreReader& self, std::uint32_t field, Ints ids) {
  Buffer out = take_buffer(ids.size() * 3 * sizeof(std::uint64_t));
  {
    const nb::gil_scoped_release free;
    check_ids(self, ids);
    self.page_extents(field, span(ids), reinterpret_cast<std::uint64_t*>(out.get()));
  }
  return as_array<std::uint64_t, 2>(std::move(out), {ids.size(), 3});
}

using VariableRecords =
    std::tuple<OwnArray<std::uint8_t>, OwnArray<std::int64_t>, std::optional<OwnArray<bool>>, OwnArray<std::uint32_t>>;

VariableRecords read_variable(const StoreReader& self, std::uint32_t field, std::uint8_t ndim, bool is_text, Ints ids,
                              ThreadPool& pool) {
  const std::size_t count = ids.size();
  Buffer offsets;
  Buffer values;
  std::vector<std::int64_t> sizes(count);
  std::vector<std::uint32_t> dims(count * ndim);
  std::uint64_t missing = 0;
  std::size_t bytes = 0;
  {
    const nb::gil_scoped_release free;
    check_ids(self, ids);
    missing = self.measure(field, ndim, span(ids), sizes.data(), ndim > 0 ? dims.data() : nullptr, pool);
    offsets = take_buffer((count + 1) * sizeof(std::int64_t));
    auto* const at = reinterpret_cast<std::int64_t*>(offsets.get());
    self.add_up(sizes, at);
    bytes = static_cast<std::size_t>(at[count]);
    values = take_buffer(bytes);
    if (count > 0) self.read_variable(field, is_text, span(ids), at, sizes.data(), values.get(), pool);
  }
  std::optional<OwnArray<bool>> present;
  if (missing > 0) {
    Buffer flags = take_buffer(count);
    std::transform(sizes.begin(), sizes.end(), flags.get(), [](std::int64_t size) { return std::byte{size >= 0}; });
    present = as_array<bool>(std::move(flags), count);
  }
  Buffer shapes = take_buffer(dims.size() * sizeof(std::uint32_t));
  std::copy(dims.begin(), dims.end(), reinterpret_cast<std::uint32_t*>(shapes.get()));
  return {as_array<std::uint8_t>(std::move(values), bytes), as_array<std::int64_t>(std::move(offsets), count + 1), present,
          as_array<std::uint32_t>(std::move(shapes), dims.size())};
}

void bind_reader(nb::module_& m) {
  nb::class_<StoreReader>(m, "StoreReader", "One generation of a store. Safe to use from several threads and after fork.")
      .def(nb::new_(&make_reader), "path"_a, "length"_a, "paths"_a, "chunks"_a.noconvert(), "segments"_a.noconvert(), "dataset"_a,
           "access"_a, "verify"_a, "batch_bytes"_a, "landings"_a = nb::none(), "record_bytes"_a = StoreLimits{}.record_bytes,
           "names"_a = std::vector<std::pair<std::uint32_t, std::string>>{})
      .def(
          "set_redirects",
          [](StoreReader& self, std::uint32_t field, Words rows) {
            if (rows.shape(1) != 3) throw std::invalid_argument("expected three numbers per redirect");
            std::vector<Redirect> redirects;
            for (std::size_t i = 0; i < rows.shape(0); ++i) {
              const std::uint64_t* row = rows.data() + 3 * i;
              redirects.push_back({row[0], static_cast<std::uint32_t>(row[1]), static_cast<std::uint32_t>(row[2])});
            }
            self.set_redirects(field, redirects);
          },
          "field"_a, "rows"_a.noconvert(), "Let records of a field point elsewhere; before the first read.")
      .def(
          "read_fixed",
          [](const StoreReader& self, std::uint32_t field, std::uint64_t stride, Ints ids, BytesOut out, BytesOut present,
             ThreadPool& pool) {
            need_same_length(ids.size() * stride, out.size());
            need_same_length(ids.size(), present.size());
            const nb::gil_scoped_release free;
            check_ids(self, ids);
            return self.read_fixed(field, stride, span(ids), out_bytes(out), present.data(), pool);
          },
          "field"_a, "stride"_a, "ids"_a.noconvert(), "out"_a.noconvert(), "present"_a.noconvert(), "pool"_a,
          "Fill out with fixed records and present with which are there; returns how many are not.")
      .def(
          "measure",
          [](const StoreReader& self, std::uint32_t field, Ints ids, IntsOut sizes, ThreadPool& pool) {
            need_same_length(ids.size(), sizes.size());
            const nb::gil_scoped_release free;
            check_ids(self, ids);
            self.measure(field, 0, span(ids), sizes.data(), nullptr, pool);
          },
          "field"_a, "ids"_a.noconvert(), "sizes"_a.noconvert(), "pool"_a,
          "Fill sizes with the decoded bytes of records of varying length, -1 for missing ones.")
      .def("read_variable", &read_variable, "field"_a, "ndim"_a, "is_text"_a, "ids"_a.noconvert(), "pool"_a,
           "Records of varying length: their bytes, where each begins and the last ends, which are present (None: all), and ndim "
           "dimensions of each.")
      .def(
          "varying",
          [](nb::handle_t<StoreReader> self, std::uint32_t field, bool is_text) {
            const auto& store = nb::cast<const StoreReader&>(self);
            return BoundVarying{std::make_shared<StoreField>(store, field, is_text), nb::borrow(self), store.length()};
          },
          "field"_a, "is_text"_a, "A field of varying length, for a ring.")
      .def(
          "verify_chunk",
          [](const StoreReader& self, std::uint32_t index) {
            std::vector<std::pair<std::uint32_t, std::string>> problems;
            const nb::gil_scoped_release free;
            self.look_at(index, [&](const Chunk& chunk) {
              auto check = [&] {
                for (const ChunkField& field : chunk.fields()) {
                  for (std::uint64_t page = 0; page < field.num_pages && problems.size() < kMostProblems; ++page) {
                    try {
                      chunk.verify_page(field, page);
                    } catch (const TruncatedError&) {
                      throw;
                    } catch (const CorruptError& error) {
                      problems.emplace_back(field.number, error.what());
                    }
                  }
                }
              };
              const Fault fault = run_guarded(check);
              if (fault.happened) chunk.file()->fail(fault.at);
            });
            return problems;
          },
          "index"_a, "Check every page of a chunk; returns the first 1000 things that are wrong, by the number of the field.")
      .def(
          "chunk_fields",
          [](const StoreReader& self, std::uint32_t index) {
            std::vector<std::tuple<std::uint32_t, std::uint64_t, bool>> fields;
            const nb::gil_scoped_release free;
            self.look_at(index, [&](const Chunk& chunk) {
              for (const ChunkField& field : chunk.fields()) {
                fields.emplace_back(field.number, field.data_bytes, field.validity != nullptr);
              }
            });
            return fields;
          },
          "index"_a, "Number and stored bytes of each field of a chunk, and whether it says which records are missing.")
      .def("view", &view_record, "field"_a, "stride"_a, "id"_a,
           "A plain record where it is in the map (a copy if it is in a landing); None if it is missing.")
      .def("places", &places, "field"_a, "ids"_a.noconvert(), "The chunk and the row of each record of a field.")
      .def("page_extents", &page_extents, "field"_a, "ids"_a.noconvert(),
           "The chunk of each record of a field, and from where to where the page that holds the record is in its file (0 and "
           "0 for "
           "a missing record). Only the indices of the chunks need to be in memory.")
      .def(
          "forget",
          [](const StoreReader& self, std::uint32_t chunk) {
            const nb::gil_scoped_release free;
            self.forget(chunk);
          },
          "chunk"_a, "Close a chunk after the reads under way; its memory may go then. The next read opens and checks it anew.");
}

}  // namespace

void bind_store(nb::module_& m) {
  nb::register_exception_translator(translate);
  bind_reader(m);
  m.def(
      "chunk_index_start",
      [](const nb::bytes& tail_bytes, std::uint64_t file_bytes, const std::string& name) {
        return chunk_index_start(in_bytes(tail_bytes), file_bytes, name);
      },
      "tail_bytes"_a, "file_bytes"_a, "name"_a = "chunk",
      "Where the index of a chunk begins, by its last bytes. An answer before those bytes asks for more of them, from there on.");
  m.def(
      "encode_records",
      [](int codec, int level, const nb::bytes& dictionary, Bytes values, Ints offsets, Array<std::uint64_t> ends) {
        need_same_length(offsets.size(), ends.size() + 1);
        const std::int64_t* at = offsets.data();
        if (codec < 0 || codec >= kNumCodecs || at[0] != 0 || !std::is_sorted(at, at + offsets.size()) ||
            static_cast<std::size_t>(at[ends.size()]) > values.size()) {
          throw std::invalid_argument("expected a codec and rising offsets from 0 within the values");
        }
        std::vector<std::byte> stored;
        {
          const std::span<const std::byte> words = in_bytes(dictionary);
          const nb::gil_scoped_release free;
          const std::unique_ptr<Dictionary> digest = words.empty() ? nullptr : Dictionary::for_writing(words, level);
          Encoder encoder(static_cast<Codec>(codec), level, digest.get());
          for (std::size_t i = 0; i < ends.size(); ++i) {
            encoder.append(in_bytes(values).subspan(static_cast<std::size_t>(at[i]), static_cast<std::size_t>(at[i + 1] - at[i])),
                           stored);
            ends.data()[i] = stored.size();
          }
        }
        return own(std::move(stored));
      },
      "codec"_a, "level"_a, "dictionary"_a, "values"_a.noconvert(), "offsets"_a.noconvert(), "ends"_a.noconvert(),
      "Compress records one by one; fills ends with where each one ends.");
  m.def(
      "train_dictionary",
      [](Bytes samples, Array<const std::uint64_t> ends, std::size_t size) {
        std::vector<std::byte> made;
        {
          const nb::gil_scoped_release free;
          made = train_dictionary(in_bytes(samples), span(ends), size);
        }
        return nb::bytes(made.data(), made.size());
      },
      "samples"_a.noconvert(), "ends"_a.noconvert(), "size"_a, "A zstd dictionary from samples.");
  m.def(
      "all_below",
      [](Ints values, std::uint64_t n) {
        const std::span<const std::int64_t> all = span(values);
        return std::all_of(all.begin(), all.end(), [=](std::int64_t value) { return static_cast<std::uint64_t>(value) < n; });
      },
      "values"_a.noconvert(), "n"_a, "Whether every value is in [0, n).");
  m.def(
      "is_network_filesystem",
      [](const PathName& path) {
        struct statfs info = {};
        if (statfs(path.bytes.c_str(), &info) != 0) return false;
#ifdef __APPLE__
        return (info.f_flags & MNT_LOCAL) == 0;
#else
        constexpr std::uint32_t kKinds[] = {0x6969,     0x517B,     0xFF534D42, 0xFE534D42, 0x65735546,
                                            0x0BD00BD0, 0x01021997, 0x00C36400, 0x5346414F};
        return std::find(std::begin(kKinds), std::end(kKinds), static_cast<std::uint32_t>(info.f_type)) != std::end(kKinds);
#endif
      },
      "path"_a, "Whether files there come over a network (NFS, SMB, FUSE, Lustre, 9p, Ceph, AFS), where maps are unsafe.");
}

}  // namespace penstock::bind
