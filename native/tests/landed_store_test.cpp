// StoreReader over landings.
#include <atomic>
#include <memory>
#include <thread>

#include "store_files.h"

using namespace penstock;

namespace {

// The chunks in landings, which hold what was landed.
struct Landings {
  explicit Landings(const Files& files) {
    for (const StoreFile* file : {&files.a, &files.b, &files.c}) {
      images.push_back(file->image);
      landings.push_back(std::make_shared<Landing>(file->image.size()));
      facts.push_back(file->fact);
      facts.back().landing = landings.back();
    }
  }
  void land(std::size_t chunk, std::uint64_t start, std::uint64_t stop) const {
    landings[chunk]->write(start, std::span(images[chunk]).subspan(start, stop - start));
  }
  void land(std::size_t chunk) const { land(chunk, 0, images[chunk].size()); }
  void land_index(std::size_t chunk) const {
    land(chunk, 0, kChunkHeaderBytes);
    land(chunk, chunk_index_start(images[chunk], images[chunk].size(), ""), images[chunk].size());
  }
  StoreReader reader() const { return StoreReader("store", kLength, facts, kSegments, {}, FileAccess::map, {}); }

  std::vector<Image> images;
  std::vector<std::shared_ptr<Landing>> landings;
  std::vector<ChunkFact> facts;
};

void landed_chunks_are_read_like_files() {
  const Files files;
  const Landings landed(files);
  for (const std::size_t threads : {1, 3}) {
    for (std::size_t chunk = 0; chunk < 3; ++chunk) landed.land(chunk);
    StoreReader reader = landed.reader();
    reader.set_redirects(0, std::vector<Redirect>{{1, 2, 99}});
    reader.set_redirects(1, std::vector<Redirect>{{1, 2, 99}});
    ThreadPool pool(threads);
    check_reads(reader, scattered(20'000), pool,
                [](std::int64_t id) { return id == 1 ? StoreReader::Place{2, 99} : place_of(id); });
    reader.look_at(2, [](const Chunk& chunk) { check(chunk.file()->is_landed(), "no file is opened"); });
  }
}

// Index, header and the named pages are all that is needed: the rest of the landings is zeros.
void the_pages_named_are_enough() {
  const Files files;
  ThreadPool pool(2);
  for (const std::int64_t step : {1, 5, 17, 60}) {
    const Landings landed(files);
    for (std::size_t chunk = 0; chunk < 3; ++chunk) landed.land_index(chunk);
    const StoreReader reader = landed.reader();
    std::vector<std::int64_t> ids;
    for (std::int64_t id = 0; id < static_cast<std::int64_t>(kLength); id += step) ids.push_back(id);
    for (const std::uint32_t field : {0U, 1U}) {
      std::vector<std::uint64_t> extents(3 * ids.size());
      reader.page_extents(field, ids, extents.data());
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const StoreReader::Place place = place_of(ids[i]);
        const std::uint64_t start = extents[3 * i + 1], stop = extents[3 * i + 2];
        check_equal(extents[3 * i], place.chunk, "chunk");
        if (is_missing(place.row)) {
          check(start == 0 && stop == 0, "nothing for a missing record");
        } else if (field == 0) {
          check_equal(start, 64 + place.row / 3 * 3 * kStride, "the page begins");
          check_equal(stop, 64 + std::min<std::uint64_t>(place.row / 3 * 3 + 3, landed.facts[place.chunk].rows) * kStride,
                      "and ends");
        }
        landed.land(extents[3 * i], start, stop);
      }
    }
    check_reads(reader, ids, pool, place_of);
    if (step < 60) continue;
    std::byte out[kStride];
    std::uint8_t present = 0;
    const std::int64_t other = 30;
    check_throws<CorruptError>([&] { reader.read_fixed(0, kStride, {&other, 1}, out, &present, pool); });
  }
}

void a_field_that_a_chunk_lacks_needs_no_pages() {
  const Files files;
  const Landings landed(files);
  const StoreReader reader = landed.reader();
  const std::vector<std::int64_t> ids{0, 118};
  std::vector<std::uint64_t> extents(6, 77);
  check_throws<std::logic_error>([&] { reader.page_extents(9, ids, extents.data()); });
  landed.land_index(0);
  landed.land_index(2);
  reader.page_extents(9, ids, extents.data());
  check_equal(extents, {0, 0, 0, 2, 0, 0});
}

void a_record_outside_its_page_is_refused() {
  ImageField field{.number = 0, .rows_per_page = 3, .data = Image(40, std::byte{1})};
  field.arrays[1] =
      numbers<std::uint64_t>({30, 10, 20, 40});  // the first record ends behind its page, the second before it begins
  Image image = make_image(4, {field});
  ChunkFact fact = seal(image, "c");
  const auto landing = std::make_shared<Landing>(image.size());
  landing->write(0, image);
  fact.landing = landing;
  const StoreReader reader("store", 4, {fact}, {{0, 4, 0, 0}}, {}, FileAccess::map, {});
  std::vector<std::uint64_t> out(6);
  check_throws<CorruptError>([&] { reader.page_extents(0, std::vector<std::int64_t>{0}, out.data()); });
  check_throws<CorruptError>([&] { reader.page_extents(0, std::vector<std::int64_t>{1}, out.data()); });
  reader.page_extents(0, std::vector<std::int64_t>{2, 3}, out.data());
  check_equal(out, {0, 64, 84, 0, 84, 104});
}

void a_forgotten_chunk_is_checked_anew() {
  const Files files;
  const Landings landed(files);
  for (std::size_t chunk = 0; chunk < 3; ++chunk) landed.land(chunk);
  const StoreReader reader = landed.reader();
  ThreadPool pool(1);
  check_reads(reader, scattered(500), pool, place_of);
  const std::byte wrong{0xEE};
  landed.landings[1]->write(64 + kStride * 4, {&wrong, 1});  // row 4 of chunk 1, id 34
  const std::int64_t id = 34;
  std::byte out[kStride];
  std::uint8_t present = 0;
  const auto read = [&] { reader.read_fixed(0, kStride, {&id, 1}, out, &present, pool); };
  read();  // it was checked before
  reader.forget(1);
  check_throws<CorruptError>(read);
  reader.forget(1);
  landed.landings[1]->drop();
  check_throws<std::logic_error>(read);
  landed.land(1);
  check_reads(reader, scattered(500), pool, place_of);
  for (int i = 0; i < 2; ++i) reader.forget(0);  // one that is not open is fine
  for (const std::uint32_t none : {3U, ~0U}) {
    check_throws<std::out_of_range>([&] { reader.forget(none); });
    check_throws<std::out_of_range>([&] { (void)reader.chunk(none); });
  }
}

// Readers never pause, and what they read is closed under them; the chunk that they do not read comes and goes.
void chunks_are_forgotten_while_others_read() {
  const Files files;
  const Landings landed(files);
  landed.land(0);
  landed.land(2);
  const StoreReader reader = landed.reader();
  std::atomic<bool> done{false};
  std::vector<std::int64_t> ids;
  for (const std::int64_t id : scattered(100)) {
    if (id < 30 || id >= 39) ids.push_back(id);
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      ThreadPool pool(1);
      while (!done) check_reads(reader, ids, pool, place_of);
    });
  }
  ThreadPool pool(1);
  for (int i = 0; i < 50; ++i) {
    landed.land(1);
    check_reads(reader, {30, 38, 33, 0}, pool, place_of);
    reader.forget(1);
    landed.landings[1]->drop();
    reader.forget(i % 2 == 0 ? 0 : 2);
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
}

// Whenever one of the readers leaves, others are still there.
void readers_without_a_pause_do_not_keep_a_chunk_open() {
  const Files files;
  const Landings landed(files);
  landed.land(0);
  const StoreReader reader = landed.reader();
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      while (!done) {
        reader.look_at(0, [](const Chunk&) {
          for (int turn = 0; turn < 300; ++turn) std::this_thread::yield();
        });
      }
    });
  }
  for (int i = 0; i < 20; ++i) reader.forget(0);
  done = true;
  for (std::thread& thread : threads) thread.join();
}

void landings_are_not_gathered_together_with_files() {
  const Files files;
  const StoreReader mapped("store", kLength, files.facts(), kSegments, {}, FileAccess::map, {});
  const StoreReader landed = Landings(files).reader();
  const StoreReader other = Landings(files).reader();
  check(StoreGather::can_read(std::vector<StoreGather::Source>{{&landed, 0}, {&other, 0}}, kStride), "all are landings");
  check(!StoreGather::can_read(std::vector<StoreGather::Source>{{&mapped, 0}, {&landed, 0}}, kStride), "a file and a landing");
  check(!StoreGather::can_read(std::vector<StoreGather::Source>{{&landed, 0}, {&mapped, 0}}, kStride), "a landing and a file");
}

}  // namespace

int main() {
  landed_chunks_are_read_like_files();
  the_pages_named_are_enough();
  a_field_that_a_chunk_lacks_needs_no_pages();
  a_record_outside_its_page_is_refused();
  a_forgotten_chunk_is_checked_anew();
  chunks_are_forgotten_while_others_read();
  readers_without_a_pause_do_not_keep_a_chunk_open();
  landings_are_not_gathered_together_with_files();
  return finish();
}
