/*
 * What Python sees of the backend: one function that makes it.
 */
#include "backend.hpp"

#include <torch/extension.h>

#include <pybind11/chrono.h>

namespace {

c10::intrusive_ptr<c10d::Backend> create(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                         int size, const std::string& group,
                                         std::chrono::milliseconds timeout, bool reconfigure) {
  if (reconfigure)
    return c10::make_intrusive<ftccl_torch::Backend>(rank, size, group, timeout);
  return c10::make_intrusive<ftccl_torch::Backend>(store, rank, size, group, timeout);
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The c10d backend of FTCCL; see ftccl.torch.";
  m.def("create", &create, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("group"),
        py::arg("timeout"), py::arg("enable_reconfigure") = false,
        py::call_guard<py::gil_scoped_release>(),
        "Makes this rank's backend of a group. Blocks until all ranks have come, at most "
        "`timeout`. Raises torch.distributed.DistBackendError.");
  py::module_::import("atexit").attr("register")(py::cpp_function(&ftccl_torch::note_exit));
  m.attr("version") = FTCCL_VERSION_CODE;
}
