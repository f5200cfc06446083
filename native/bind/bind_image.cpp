#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "bind/array.h"
#include "core/error.h"
#include "core/image.h"
#include "core/thread_pool.h"

namespace penstock::bind {

using namespace nb::literals;

namespace {

using Bytes = Array<const std::uint8_t>;
using Seeds = Array<const std::uint64_t>;
using Triple = std::array<float, 3>;
using Range = std::pair<double, double>;

std::span<const std::byte> in_bytes(const Bytes& data) { return std::as_bytes(span(data)); }

// Encoded pictures, one behind the other.
class Records {
 public:
  Records(const Bytes& values, const Ints& offsets, const Seeds& seeds) : values_(in_bytes(values)), offsets_(span(offsets)) {
    need_same_length(offsets.size(), seeds.size() + 1);
    if (offsets_.front() < 0 || !std::is_sorted(offsets_.begin(), offsets_.end()) ||
        static_cast<std::size_t>(offsets_.back()) > values_.size()) {
      throw std::invalid_argument("expected rising offsets within the values");
    }
  }
  std::span<const std::byte> operator[](std::size_t i) const {
    return values_.subspan(static_cast<std::size_t>(offsets_[i]), static_cast<std::size_t>(offsets_[i + 1] - offsets_[i]));
  }

 private:
  std::span<const std::byte> values_;
  std::span<const std::int64_t> offsets_;
};

// The failure of the lowest number, whatever the threads do first.
class FirstFailure {
 public:
  bool behind(std::size_t i) const { return i > index_.load(std::memory_order_relaxed); }
  void note(std::size_t i, const char* reason) {
    const std::lock_guard lock(mutex_);
    if (behind(i)) return;
    index_.store(i, std::memory_order_relaxed);
    reason_ = reason;
  }
  // With the GIL.
  void raise() const {
    if (index_.load() == kNone) return;
    const nb::object made = nb::module_::import_("penstock.errors").attr("ImageError")(reason_, index_.load());
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
    throw nb::python_error();
  }

 private:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  std::atomic<std::size_t> index_{kNone};
  std::mutex mutex_;
  std::string reason_;
};

void make_maker(ImageMaker* self, std::uint32_t height, std::uint32_t width, ImageCrop crop, Range scale, Range ratio,
                double fraction, double flip, ImageLayout layout, ImageType type, const std::optional<Triple>& mean,
                const std::optional<Triple>& std, std::uint8_t fill, std::uint32_t channels, std::uint64_t max_pixels,
                std::uint32_t max_scale, std::optional<Simd> level, bool numbers) {
  ImageSpec spec;
  spec.height = height;
  spec.width = width;
  spec.crop = crop;
  spec.scale_low = scale.first;
  spec.scale_high = scale.second;
  spec.ratio_low = ratio.first;
  spec.ratio_high = ratio.second;
  spec.fraction = fraction;
  spec.flip = flip;
  spec.layout = layout;
  spec.type = type;
  spec.channels = channels;
  spec.normalise = mean.has_value() || std.has_value();
  if (mean) std::copy(mean->begin(), mean->end(), spec.mean);
  if (std) std::copy(std->begin(), std->end(), spec.std);
  spec.fill = fill;
  spec.max_pixels = max_pixels;
  spec.max_scale = max_scale;
  spec.numbers = numbers;
  const std::vector<Simd> levels = available_simd();
  if (level && std::find(levels.begin(), levels.end(), *level) == levels.end()) {
    throw std::invalid_argument("this processor does not have that instruction set");
  }
  new (self) ImageMaker(spec, level.value_or(best_simd()));
}

std::size_t make_images(const ImageMaker& self, Bytes values, Ints offsets, Seeds seeds, Array<std::uint8_t> out,
                        ThreadPool& threads, const std::optional<Array<std::uint8_t>>& errors,
                        const std::optional<std::pair<Bytes, Ints>>& partners) {
  const Records records(values, offsets, seeds);
  std::optional<Records> others;
  if (partners) others.emplace(partners->first, partners->second, seeds);
  const std::size_t bytes = self.bytes();
  need_same_length(seeds.size() * bytes, out.size());
  if (errors) need_same_length(seeds.size(), errors->size());
  FirstFailure failure;
  std::atomic<std::size_t> failed{0};
  {
    const nb::gil_scoped_release free;
    threads.for_each(seeds.size(), [&](std::size_t i) {
      if (!errors && failure.behind(i)) return;
      auto* const to = reinterpret_cast<std::byte*>(out.data()) + i * bytes;
      if (errors) errors->data()[i] = 0;
      try {
        self.make(records[i], seeds.data()[i], to, others ? (*others)[i] : std::span<const std::byte>{});
      } catch (const ImageError& e) {
        failure.note(i, e.what());
        failed.fetch_add(1);
        if (!errors) return;
        errors->data()[i] = 1;
        std::memset(to, 0, bytes);
      }
    });
  }
  if (!errors) failure.raise();
  return failed.load();
}

using BoxesOut = nb::ndarray<nb::numpy, std::int32_t, nb::ndim<2>>;

BoxesOut find_boxes(const ImageMaker& self, Bytes values, Ints offsets, Seeds seeds) {
  const Records records(values, offsets, seeds);
  const std::size_t count = seeds.size();
  auto* const made = new std::int32_t[5 * count + 1];
  const nb::capsule owner(made, [](void* p) noexcept { delete[] static_cast<std::int32_t*>(p); });
  FirstFailure failure;
  {
    const nb::gil_scoped_release free;
    for (std::size_t i = 0; i < count && !failure.behind(i); ++i) {
      try {
        const ImageInfo info = probe_image(records[i], self.spec().max_pixels);
        const ImageBox box = self.box(info.width, info.height, seeds.data()[i]);
        const std::uint32_t row[] = {box.x, box.y, box.width, box.height, box.flip ? 1U : 0U};
        for (std::size_t k = 0; k < 5; ++k) made[5 * i + k] = static_cast<std::int32_t>(row[k]);
      } catch (const ImageError& e) {
        failure.note(i, e.what());
      }
    }
  }
  failure.raise();
  return BoxesOut(made, {count, 5}, owner);
}

}  // namespace

void bind_image(nb::module_& m) {
  nb::enum_<ImageFormat>(m, "ImageFormat", "Formats that are decoded.")
      .value("JPEG", ImageFormat::jpeg)
      .value("PNG", ImageFormat::png)
      .value("WEBP", ImageFormat::webp);
  nb::enum_<ImageCrop>(m, "ImageCrop", "Which part of a picture is taken.")
      .value("NONE", ImageCrop::none)
      .value("CENTER", ImageCrop::center)
      .value("RANDOM", ImageCrop::random)
      .value("PAD", ImageCrop::pad);
  nb::enum_<ImageLayout>(m, "ImageLayout", "The order of the axes.")
      .value("NCHW", ImageLayout::nchw)
      .value("NHWC", ImageLayout::nhwc);
  nb::enum_<ImageType>(m, "ImageType", "Element types.")
      .value("U1", ImageType::u1)
      .value("F2", ImageType::f2)
      .value("F4", ImageType::f4);
  m.attr("DEFAULT_MAX_PIXELS") = kDefaultMaxPixels;
  nb::class_<ImageMaker>(m, "ImageMaker",
                         "Decodes, crops, resizes and converts pictures into arrays of one size. Immutable, thread-safe.")
      .def("__init__", &make_maker, nb::kw_only(), "height"_a, "width"_a, "crop"_a = ImageCrop::random,
           "scale"_a = Range{0.08, 1.0}, "ratio"_a = Range{3.0 / 4.0, 4.0 / 3.0}, "fraction"_a = 1.0, "flip"_a = 0.0,
           "layout"_a = ImageLayout::nhwc, "type"_a = ImageType::u1, "mean"_a.none() = nb::none(), "std"_a.none() = nb::none(),
           "fill"_a = 0, "channels"_a = 3, "max_pixels"_a = kDefaultMaxPixels, "max_scale"_a = 8, "level"_a.none() = nb::none(),
           "numbers"_a = false)
      .def_prop_ro("nbytes", &ImageMaker::bytes, "Bytes of one output.")
      .def("make", &make_images, "values"_a.noconvert(), "offsets"_a.noconvert(), "seeds"_a.noconvert(), "out"_a.noconvert(),
           "threads"_a, "errors"_a.noconvert().none() = nb::none(), "partners"_a.noconvert().none() = nb::none(),
           "Decode record i, values[offsets[i]:offsets[i + 1]], with seeds[i] into out[i * nbytes:]. Raises ImageError for the "
           "first record that fails (index, reason); with errors, sets errors[i] to 1 and the output to 0 instead. Gives the "
           "number of failures. ``partners`` are the values and offsets of pictures that must have the sizes of these; no bytes: "
           "none.")
      .def("boxes", &find_boxes, "values"_a.noconvert(), "offsets"_a.noconvert(), "seeds"_a.noconvert(),
           "x, y, width, height and flip of every record, in pixels as displayed; reads headers only.")
      .def(
          "box",
          [](const ImageMaker& self, std::uint32_t width, std::uint32_t height, std::uint64_t seed) {
            const ImageBox box = self.box(width, height, seed);
            return std::tuple(box.x, box.y, box.width, box.height, box.flip);
          },
          "width"_a, "height"_a, "seed"_a, "x, y, width, height and flip for a picture of that displayed size.");
  m.def(
      "probe_image",
      [](Bytes data, std::uint64_t max_pixels) {
        ImageInfo info;
        {
          const nb::gil_scoped_release free;
          info = probe_image(in_bytes(data), max_pixels);
        }
        return std::tuple(info.format, info.width, info.height, info.channels);
      },
      "data"_a.noconvert(), "max_pixels"_a = kDefaultMaxPixels,
      nb::sig("def probe_image(data: bytes | NDArray[numpy.uint8], max_pixels: int = 178956970) "
              "-> tuple[ImageFormat, int, int, int]"),
      "Format, width, height (as displayed) and channels (as stored), by the header.");
  m.def(
      "shrink_image",
      [](Bytes data, std::uint32_t max_side, int quality, std::uint64_t max_pixels) {
        std::vector<std::byte> out;
        {
          const nb::gil_scoped_release free;
          shrink_image(in_bytes(data), max_side, quality, out, max_pixels);
        }
        return nb::bytes(out.data(), out.size());
      },
      "data"_a.noconvert(), "max_side"_a, "quality"_a, "max_pixels"_a = kDefaultMaxPixels,
      nb::sig("def shrink_image(data: bytes | NDArray[numpy.uint8], max_side: int, quality: int, max_pixels: int = 178956970) "
              "-> bytes"),
      "The picture as a JPEG whose longer side has at most max_side pixels, with its orientation applied.");
}

}  // namespace penstock::bind
