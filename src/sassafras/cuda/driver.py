"""A thin layer over cuda-bindings: every return code checked, only what the worker needs."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sassafras.core import DeviceError, Kernel, ToolMissing, Verdict

#: after these a context is lost for good: the process has to be replaced
STICKY = frozenset(
    {
        214,  # ECC uncorrectable
        700,  # illegal address
        702,  # launch timeout
        710,  # assert
        714,  # hardware stack error
        715,  # illegal instruction
        716,  # misaligned address
        717,  # invalid address space
        718,  # invalid program counter
        719,  # launch failed
        721,
        999,
    }
)
NOT_READY = 600
_RESOURCES = frozenset({2, 701, 720, 917})
_REFUSED = frozenset({200, 218, 222, 300, 301, 302, 303, 500})
_FOREIGN = frozenset({209, 801})
#: part of the GPU's memory that a kernel may have for its stacks: others of the machine need the rest
_LOCAL_SHARE = 0.25


class CudaError(DeviceError):
    """A driver call failed.

    Attributes:
        call: the driver function.
        code: the CUresult.
        sticky: the context is lost.
        verdict: what it says of the candidate that caused it.
    """

    def __init__(self, call: str, code: int, name: str) -> None:
        self.call = call
        self.code = code
        super().__init__(f"{call}: {name} ({code})", sticky=code in STICKY, verdict=_verdict(call, code))


def _verdict(call: str, code: int) -> Verdict:
    """What an error says of the candidate that caused it."""
    if code in _RESOURCES:
        return Verdict.OUT_OF_RESOURCES
    if code in _FOREIGN:
        return Verdict.UNSUPPORTED
    if code in _REFUSED or (call.startswith("cuModule") and code not in STICKY):
        return Verdict.COMPILE_ERROR
    return Verdict.CRASHED


def bindings() -> Any:
    """The ``cuda.bindings.driver`` module. Raises ToolMissing."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise ToolMissing(
            "cuda-bindings is not installed", hint="in the checkout: pip install -e '.[gpu]'"
        ) from error
    return driver


def call(function: Callable[..., Any], *args: Any) -> Any:
    """Call a driver function; its result without the code (None, one value, or a tuple)."""
    result = function(*args)
    code = int(result[0])
    if code:
        name = getattr(result[0], "name", "CUDA error")
        raise CudaError(getattr(function, "__name__", "driver call"), code, name)
    if len(result) == 1:
        return None
    return result[1] if len(result) == 2 else tuple(result[1:])


@dataclass(frozen=True, slots=True)
class KernelFunction:
    """A loaded entry: its module and its handle; `sizes` are its parameters' bytes, in order."""

    module: Any
    handle: Any
    sizes: tuple[int, ...] | None


class Gpu:
    """The GPU of this process: context (shared with torch), one stream, launches, copies, graphs.

    Args:
        ordinal: CUDA device number.
    """

    def __init__(self, ordinal: int = 0) -> None:
        self.driver = bindings()
        try:
            call(self.driver.cuInit, 0)
        except RuntimeError as error:  # cuda-bindings: libcuda could not be opened
            raise DeviceError(
                "no CUDA driver on this machine", hint="use the timing model: --device model"
            ) from error
        device = call(self.driver.cuDeviceGet, ordinal)
        self.context = call(self.driver.cuDevicePrimaryCtxRetain, device)
        call(self.driver.cuCtxSetCurrent, self.context)
        self.name = bytes(call(self.driver.cuDeviceGetName, 256, device)).split(b"\0")[0].decode()
        attribute = self.driver.CUdevice_attribute

        def ask(which: Any) -> int:
            return int(call(self.driver.cuDeviceGetAttribute, which, device))

        self.capability = (
            ask(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            ask(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
        self.multiprocessors = ask(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        self.l2_bytes = ask(attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)
        self.bytes = int(call(self.driver.cuDeviceTotalMem, device))
        self.threads = self.multiprocessors * ask(
            attribute.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR
        )
        self.stream = call(self.driver.cuStreamCreate, int(self.driver.CUstream_flags.CU_STREAM_NON_BLOCKING))

    # -- code ---------------------------------------------------------------------------------------------

    def load(
        self, cubin: bytes, name: str, shared_bytes: int = 0, cluster: Sequence[int] = (1, 1, 1)
    ) -> KernelFunction:
        """Load a cubin from memory and look its entry up.

        Raises:
            CudaError: the driver refuses it.
            DeviceError: its stack takes too much of the GPU's memory (verdict out_of_resources).
        """
        module = call(self.driver.cuModuleLoadData, cubin)
        try:
            handle = call(self.driver.cuModuleGetFunction, module, name.encode())
            attribute = self.driver.CUfunction_attribute
            self._check_stack(name, handle)
            if shared_bytes > 48 * 1024:
                call(
                    self.driver.cuFuncSetAttribute,
                    handle,
                    attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    shared_bytes,
                )
                # as Triton's own loader does: the share of the L1 decides how many blocks fit
                prefer = self.driver.CUfunc_cache.CU_FUNC_CACHE_PREFER_SHARED
                call(self.driver.cuFuncSetCacheConfig, handle, prefer)
            if cluster[0] * cluster[1] * cluster[2] > 8:
                call(
                    self.driver.cuFuncSetAttribute,
                    handle,
                    attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                    1,
                )
            return KernelFunction(module, handle, self._parameter_sizes(handle))
        except BaseException:
            call(self.driver.cuModuleUnload, module)
            raise

    def load_kernel(self, kernel: Kernel) -> KernelFunction:
        """`load` for a `Kernel`."""
        return self.load(kernel.cubin, kernel.name, kernel.shared_bytes, kernel.cluster)

    def unload(self, function: KernelFunction) -> None:
        """Unload the function's module."""
        call(self.driver.cuModuleUnload, function.module)

    def _check_stack(self, name: str, handle: Any) -> None:
        """A launch takes it for all threads that fit, and CUDA keeps that as long as the process lives."""
        local = self.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
        stack = int(call(self.driver.cuFuncGetAttribute, local, handle))
        if (needed := stack * self.threads) > _LOCAL_SHARE * self.bytes:
            raise DeviceError(
                f"{name} has a stack of {stack:,} bytes a thread: {needed / 2**30:.0f} GiB of {self.name}'s "
                f"{self.bytes / 2**30:.0f} GiB, and {_LOCAL_SHARE * self.bytes / 2**30:.0f} GiB are allowed",
                hint="keep large arrays in shared or global memory",
                verdict=Verdict.OUT_OF_RESOURCES,
            )

    def _parameter_sizes(self, handle: Any) -> tuple[int, ...] | None:
        info = getattr(self.driver, "cuFuncGetParamInfo", None)  # since CUDA 12.4
        if info is None:
            return None
        sizes: list[int] = []
        while len(sizes) < 4096:
            result = info(handle, len(sizes))
            code = int(result[0])
            if code == 1:  # invalid value: no such parameter
                return tuple(sizes)
            if code:
                raise CudaError("cuFuncGetParamInfo", code, getattr(result[0], "name", ""))
            sizes.append(int(result[2]))
        return None

    def config(
        self,
        grid: Sequence[int],
        threads: int,
        shared_bytes: int = 0,
        cluster: Sequence[int] = (1, 1, 1),
        *,
        overlap: bool = False,
    ) -> Any:
        """A launch configuration on our stream; keep it and use it many times.

        Args:
            overlap: the kernel may start before the launch ahead of it has ended (programmatic stream
                serialization); only for kernels that wait for it themselves (``griddepcontrol.wait``).
        """
        config = self.driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = shared_bytes
        config.hStream = self.stream
        kinds, attributes = self.driver.CUlaunchAttributeID, []
        if tuple(cluster) != (1, 1, 1):
            attribute = self.driver.CUlaunchAttribute()
            attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attribute.value.clusterDim.x = cluster[0]
            attribute.value.clusterDim.y = cluster[1]
            attribute.value.clusterDim.z = cluster[2]
            attributes.append(attribute)
        if overlap:
            attribute = self.driver.CUlaunchAttribute()
            attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        if attributes:
            config.attrs = attributes
        config.numAttrs = len(attributes)
        return config

    def launch(self, config: Any, function: KernelFunction, params_address: int) -> None:
        """Launch on our stream; `params_address` is a `ParameterBlock.address`."""
        call(self.driver.cuLaunchKernelEx, config, function.handle, params_address, 0)

    # -- memory and time ----------------------------------------------------------------------------------

    def copy(self, destination: int, source: int, count: int) -> None:
        """Device to device, on our stream."""
        call(self.driver.cuMemcpyDtoDAsync, destination, source, count, self.stream)

    def clear(self, destination: int, count: int) -> None:
        """Zero bytes on our stream."""
        call(self.driver.cuMemsetD8Async, destination, 0, count, self.stream)

    def read_back(self, host: int, device: int, count: int) -> None:
        """Device to (pinned) host, on our stream."""
        call(self.driver.cuMemcpyDtoHAsync, host, device, count, self.stream)

    def pinned(self, words: int) -> Any:
        """A pinned array of 64-bit words (freed with the process)."""
        address = int(call(self.driver.cuMemAllocHost, 8 * words))
        return (ctypes.c_uint64 * words).from_address(address)

    def sync(self) -> None:
        """Wait for our stream. Raises CudaError for whatever a kernel did."""
        call(self.driver.cuStreamSynchronize, self.stream)

    def wait(self, seconds: float) -> bool:
        """Wait for our stream at most that long; False when it is still busy. Raises CudaError."""
        deadline = time.monotonic() + seconds
        while True:
            code = int(self.driver.cuStreamQuery(self.stream)[0])
            if code == 0:
                return True
            if code != NOT_READY:
                raise CudaError("cuStreamQuery", code, self.driver.CUresult(code).name)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)

    def event(self) -> Any:
        """A timing event."""
        return call(self.driver.cuEventCreate, 0)

    def record(self, event: Any) -> None:
        """Record on our stream."""
        call(self.driver.cuEventRecord, event, self.stream)

    def record_in_graph(self, event: Any) -> None:
        """While capturing: a node that records an event which is waited for and read outside the graph."""
        external = self.driver.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL
        call(self.driver.cuEventRecordWithFlags, event, self.stream, int(external))

    def elapsed_us(self, begin: Any, end: Any) -> float:
        """Microseconds between two recorded events."""
        return 1e3 * float(call(self.driver.cuEventElapsedTime, begin, end))

    def free_memory(self) -> tuple[int, int]:
        """(free, total) bytes of GPU memory."""
        free, total = call(self.driver.cuMemGetInfo)
        return int(free), int(total)

    # -- graphs -------------------------------------------------------------------------------------------

    def capture(self, enqueue: Callable[[], None]) -> Any:
        """Capture what `enqueue` puts on our stream into an executable graph."""
        return self.capture_counted(enqueue)[0]

    def capture_counted(self, enqueue: Callable[[], None]) -> tuple[Any, int]:
        """The same, and the number of the graph's nodes."""
        mode = self.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        call(self.driver.cuStreamBeginCapture, self.stream, mode)
        try:
            enqueue()
        except BaseException:
            self.driver.cuStreamEndCapture(self.stream)
            raise
        graph = call(self.driver.cuStreamEndCapture, self.stream)
        try:
            _, nodes = call(self.driver.cuGraphGetNodes, graph, 0)
            return call(self.driver.cuGraphInstantiate, graph, 0), int(nodes)
        finally:
            call(self.driver.cuGraphDestroy, graph)

    def replay(self, graph: Any) -> None:
        """Launch an executable graph on our stream."""
        call(self.driver.cuGraphLaunch, graph, self.stream)

    def discard(self, graph: Any) -> None:
        """Destroy an executable graph."""
        call(self.driver.cuGraphExecDestroy, graph)
