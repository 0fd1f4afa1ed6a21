"""The worker process of one call: takes its turn on the GPU, runs the tool, answers.

Forked by a fork server, which has imported the tools; ends with it.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sassafras.core import DeviceError
from sassafras.cuda.environment import available
from sassafras.cuda.worker_loop import Answer, serve, tell
from sassafras.deploy.gpu import claim_key
from sassafras.frontend.triton import leave_torch_out
from sassafras.store import Store
from sassafras.store.claims import Owner, take_turn

from .tools import TOOLS, Call

#: seconds between two looks at the queue
_LOOK = 0.1


def _tool(message: Answer) -> Callable[..., Any]:
    return next(tool for tool in TOOLS if tool.__name__ == message["tool"])


def _turn(message: Answer, blobs: list[bytes]) -> Answer:
    """Wait for the GPU, first come, first served among all servers of this store; held until we end."""
    usable, missing = available()
    if not usable:
        modelled = "device" in inspect.signature(_tool(message)).parameters
        hint = 'device="model" asks the timing model' if modelled else "this tool needs one"
        raise DeviceError(f"no usable GPU: {missing}", hint=hint)
    owner = Owner.me()
    with Store.open(message["store"]) as store:
        said = None
        while (before := take_turn(store, claim_key(owner.host), message["ticket"], owner)) is not None:
            if before != said:
                tell(message=f"waiting for the GPU: process {before.pid} is before")
            said = before
            time.sleep(_LOOK)
    return {}


def _call(message: Answer, blobs: list[bytes]) -> Answer:
    call = Call(Path(message["root"]), message["store"], tell)
    found = _tool(message)(call, **message["arguments"])
    # strict JSON has no NaN: such numbers are text, as in files of judgements
    return {"result": json.loads(json.dumps(found, default=str), parse_constant=str)}


def preload() -> None:
    """For the fork server: Triton does without torch; numba's types cost each call half a second."""
    leave_torch_out()
    from numba.core.registry import cpu_target

    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


def main() -> int:
    """Serve the descriptors in ``sys.argv``; the exit status."""
    return serve({"turn": _turn, "call": _call})
