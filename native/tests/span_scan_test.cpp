#include "core/span_scan.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "check.h"
#include "core/crc32c.h"
#include "core/error.h"

using namespace penstock;

namespace {

using Numbers = std::vector<std::int64_t>;
using Names = std::vector<std::string>;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string number(std::uint64_t value, std::size_t size) { return {reinterpret_cast<const char*>(&value), size}; }

std::string masked_crc(const std::string& data) {
  const std::uint32_t crc = crc32c(bytes_of(data));
  return number(static_cast<std::uint32_t>(((crc >> 15) | (crc << 17)) + 0xa282ead8U), 4);
}

std::string record(const std::string& data) {
  const std::string length = number(data.size(), 8);
  return length + masked_crc(length) + data + masked_crc(data);
}

std::string member(const std::string& name, const std::string& data, char type = '0') {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  char size[13];
  std::snprintf(size, sizeof size, "%011o", static_cast<unsigned>(data.size()));
  header.replace(124, 11, size);
  header.replace(148, 8, "        ");
  header[156] = type;
  header.replace(257, 5, "ustar");
  unsigned sum = 0;
  for (const char byte : header) sum += static_cast<unsigned char>(byte);
  char told[8];
  std::snprintf(told, sizeof told, "%06o", sum);
  header.replace(148, 7, std::string(told, 7));
  return header + data + std::string((512 - data.size() % 512) % 512, '\0');
}

// Feeds pieces of at least `piece` bytes.
template <class Scanner>
ScannedSpans scan(const std::string& file, std::size_t piece) {
  Scanner scanner("file", file.size());
  std::size_t rounds = 0;
  while (!scanner.is_done()) {
    if (++rounds > 10 * file.size() + 10) throw std::logic_error("it does not end");
    const std::size_t count = std::min<std::size_t>(std::max<std::size_t>(piece, scanner.need()), file.size() - scanner.next());
    scanner.feed(bytes_of(file).subspan(scanner.next(), count));
  }
  return scanner.take();
}

void tfrecords_are_found() {
  const std::string file = record("one") + record("") + record(std::string(5000, 'x'));
  for (const std::size_t piece : {1, 12, 100, 100'000}) {
    const ScannedSpans found = scan<TFRecordScanner>(file, piece);
    check_equal(found.table,
                Numbers{12, 3, crc32c(bytes_of("one")), 31, 0, 0, 47, 5000, crc32c(bytes_of(std::string(5000, 'x')))}, "table");
    check(found.has_crcs, "has crcs");
    check_equal(found.columns, Names{"data"});
  }
  check_equal(scan<TFRecordScanner>("", 1).table, Numbers{}, "an empty file");
}

void samples_are_found() {
  const std::string file = member("a/1.jpg", "image") + member("a/1.TXT", "text") + member("d/", "", '5') +
                           member("x", std::string("long/name.txt\0", 14), 'L') + member("cut", "more") + std::string(1024, '\0');
  for (const std::size_t piece : {1, 512, 1024, 100'000}) {
    const ScannedSpans found = scan<TarScanner>(file, piece);
    check_equal(found.columns, Names{"jpg", "txt", "__key__"});
    check_equal(found.table, Numbers{512, 5, 1536, 4, 0, 3, 0, -1, 4096, 4, 3, 9}, "table");
    check_equal(std::string(reinterpret_cast<const char*>(found.memory.data()), found.memory.size()), std::string("a/1long/name"),
                "keys");
  }
}

// Whatever comes, a scan ends with spans within the file or with an error.
template <class Scanner>
void damage_is_an_error_or_other_spans(const std::string& good, unsigned seed) {
  std::mt19937 random(seed);
  for (int round = 0; round < 3000; ++round) {
    std::string file = good;
    for (unsigned changes = random() % 4; changes-- > 0 && !file.empty();) {
      const std::size_t at = random() % file.size();
      switch (random() % 4) {
        case 0: file[at] = static_cast<char>(random()); break;
        case 1: file.resize(at); break;
        case 2: file.erase(at, random() % 600); break;
        default: file.insert(at, std::string(random() % 600, static_cast<char>(random())));
      }
    }
    try {
      const ScannedSpans found = scan<Scanner>(file, random() % 2000 + 1);
      const std::size_t words = 2 * found.columns.size() + (found.has_crcs ? found.in_file : 0);
      check(found.table.size() % words == 0, "whole rows");
      for (std::size_t row = 0; row < found.table.size(); row += words) {
        for (std::size_t c = 0; c < found.columns.size(); ++c) {
          const std::int64_t start = found.table[row + 2 * c];
          const std::int64_t size = found.table[row + 2 * c + 1];
          const auto most = static_cast<std::int64_t>(c < found.in_file ? file.size() : found.memory.size());
          check(size == -1 || (start >= 0 && size >= 0 && start + size <= most), "a span within the file");
        }
      }
    } catch (const CorruptError&) {}
  }
}

void scans_of_files_are_those_of_pieces() {
  std::string file;
  for (int i = 0; i < 30; ++i) file += record(std::string(static_cast<std::size_t>(i) * 20'000, 'x'));
  char path[] = "/tmp/span_scan_XXXXXX";
  const int descriptor = mkstemp(path);
  check(write(descriptor, file.data(), file.size()) == static_cast<ssize_t>(file.size()), "written");
  close(descriptor);
  TFRecordScanner scanner(path, file.size());
  scanner.scan(path, {});
  check_equal(scanner.take().table, scan<TFRecordScanner>(file, 1).table, "table");
  unlink(path);
}

}  // namespace

int main() {
  tfrecords_are_found();
  samples_are_found();
  damage_is_an_error_or_other_spans<TFRecordScanner>(record("one") + record("") + record(std::string(300, 'x')), 1);
  damage_is_an_error_or_other_spans<TarScanner>(member("a.jpg", "image") + member("b.txt", "text") +
                                                    member("x", std::string("18 path=some/c.x\n\0", 18), 'x') +
                                                    member("cut", "more") + std::string(1024, '\0'),
                                                2);
  scans_of_files_are_those_of_pieces();
  return finish();
}
