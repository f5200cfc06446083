// The native core as the Python module penstock._core. One bind_*.cpp per subject.
#include <nanobind/nanobind.h>

namespace penstock::bind {
void bind_checksum(nanobind::module_& m);
void bind_file_list(nanobind::module_& m);
void bind_image(nanobind::module_& m);
void bind_landing(nanobind::module_& m);
void bind_lines(nanobind::module_& m);
void bind_loader(nanobind::module_& m);
void bind_order(nanobind::module_& m);
void bind_pack(nanobind::module_& m);
void bind_packed(nanobind::module_& m);
void bind_permutation(nanobind::module_& m);
void bind_rows(nanobind::module_& m);
void bind_spans(nanobind::module_& m);
void bind_store(nanobind::module_& m);
}  // namespace penstock::bind

NB_MODULE(_core, m) {
  nanobind::set_leak_warnings(false);  // a program may end while a thread of its own still waits in here
  m.doc() = "The native core of penstock. Private: its functions trust their callers about sizes they cannot see.";
  penstock::bind::bind_permutation(m);
  penstock::bind::bind_order(m);
  penstock::bind::bind_pack(m);
  penstock::bind::bind_checksum(m);
  penstock::bind::bind_landing(m);
  penstock::bind::bind_lines(m);
  penstock::bind::bind_rows(m);
  penstock::bind::bind_spans(m);
  penstock::bind::bind_packed(m);
  penstock::bind::bind_file_list(m);
  penstock::bind::bind_store(m);
  penstock::bind::bind_image(m);
  penstock::bind::bind_loader(m);
}
