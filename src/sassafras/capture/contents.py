"""Contents of integer tensors before a launch: indices, lengths and tables that control a kernel."""

from __future__ import annotations

import io
from typing import Any

from sassafras.capture.settings import CaptureSettings
from sassafras.core.files import write_whole
from sassafras.frontend.captured.values import contents_digest, is_tensor


class ContentsWriter:
    """Copies small integer tensors to files of a capture; of larger ones it keeps the range.

    Args:
        settings: the folder, bytes of one tensor, and bytes of all.
    """

    def __init__(self, settings: CaptureSettings) -> None:
        self._settings = settings
        self._kept: dict[str, dict[str, Any]] = {}
        self._bytes = 0

    def copy(self, values: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """For each integer tensor by name: ``low`` and ``high``, and ``data`` (sha256) where it is kept.

        Synchronises with the GPU, so that it must not be called while a graph is captured.
        """
        found = {}
        for name, value in values.items():
            if is_tensor(value) and hasattr(value, "cpu"):
                kind = str(value.dtype).removeprefix("torch.")
                if kind in ("bool", "uint8") or kind.startswith(("int", "uint")):
                    found[name] = self._one(value.detach())
        return found

    def _one(self, tensor: Any) -> dict[str, Any]:
        if tensor.numel() == 0:
            return {}
        small = tensor.numel() * tensor.element_size() <= self._settings.tensor_bytes
        if not small or self._bytes >= self._settings.all_bytes:
            return {"low": int(tensor.min().item()), "high": int(tensor.max().item())}
        import numpy as np

        array = np.ascontiguousarray(tensor.cpu().numpy())
        digest = contents_digest(array)
        if digest not in self._kept:
            self._bytes += array.nbytes
            packed = io.BytesIO()
            np.savez_compressed(packed, data=array)
            write_whole(self._settings.folder / f"{digest}.npz", packed.getvalue())
            self._kept[digest] = {"low": int(array.min()), "high": int(array.max())}
        return {"data": digest, **self._kept[digest]}
