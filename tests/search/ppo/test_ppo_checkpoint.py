"""Files that are no policies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sassafras.core import SearchError
from sassafras.search.ppo import checkpoint


def test_files_that_are_no_policies_are_refused(tmp_path: Path) -> None:
    shipped = checkpoint.find("pretrained")
    assert shipped is not None
    facts = checkpoint.load(shipped)[1]  # written under the names of an earlier version
    assert facts["layout"]["actions"] == 8 and facts["settings"]["samples_per_state"] == 10
    whole = shipped.read_bytes()
    np.save(tmp_path / "array.npy", np.zeros(3))
    contents = {"empty": b"", "cut": whole[: len(whole) // 2], "text": b"no policy", "array": b""}
    for name, data in contents.items():
        path = tmp_path / "array.npy" if name == "array" else tmp_path / name
        if name != "array":
            path.write_bytes(data)
        with pytest.raises(SearchError, match="cannot read this policy"):
            checkpoint.load(path)
    with pytest.raises(SearchError, match="cannot read this policy"):
        checkpoint.load(tmp_path / "missing")
