"""The packaged tables against what was collected by hand, and their files against damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sassafras.core.errors import LatencyTableError
from sassafras.sass.latency import LatencyTable

TABLES = ["sm_80", "sm_86", "sm_89", "sm_90"]


@pytest.fixture(scope="module")
def sm_90() -> LatencyTable:
    return LatencyTable.load("sm_90")


def least(table: LatencyTable, kind: str, first: str, out: str, second: str, into: str) -> int:
    """The smallest minimum over rows: opcode keys and slots are lists, ``*`` stands for any."""
    match = [a.split() for a in (first, out, second, into)]
    found = [
        seen.cycles
        for key, seen in table.rows.items()
        if key[0] == kind and all("*" in m or k in m for m, k in zip(match, key[1:], strict=True))
    ]
    assert found, (kind, first, out, second, into)
    return min(found)


FP, INT, ADDRESS = "FADD FFMA FMUL", "IADD3 LOP3 SHF LEA", "0a 0a+1 1a 1a+1"
MEMORY = "LDG LDG.64 LDG.128 STG STG.64 STG.128 LDS STS LDGSTS.128 LDSM.16.M88.4"
PREDICATES = "ISETP ISETP.EX FSETP LOP3 PLOP3"

#: minimum distances collected by hand before these tables existed, and met again
KNOWN = [
    (FP, "0", FP, "*", 4),
    (FP, "0", "FSETP STG STG.64 STG.128", "0 1", 5),
    (INT, "0", INT + " ISETP SEL", "*", 4),
    (INT, "0", "IMAD", "*", 5),
    ("IMAD", "0", "IMAD FFMA", "*", 4),
    ("IMAD", "0", INT + " ISETP SEL", "*", 5),
    ("IMAD", "0", "IMAD.WIDE", "3+1", 2),
    ("MOV", "0", "IMAD.WIDE", "3+1", 3),
    ("LEA.HI.X", "0", "IMAD.WIDE", "3+1", 3),
    (INT + " IMAD " + FP, "0", MEMORY, ADDRESS, 5),
    (INT + " IMAD " + FP, "0", "STG STG.64 STG.128 STS STS.128", "1 1+1 1+2 1+3", 5),
    ("ISETP FSETP", "0p0", "SEL FSEL PLOP3 ISETP P2R", "1 2p0 3p0 0p2 0p3", 4),
    (PREDICATES, "0p0 0p1", "*", "G", 13),
    (PREDICATES, "0p0", "LDGSTS LDGSTS.64 LDGSTS.128", "2p0", 13),
    (PREDICATES, "0p0", "VOTEU", "0p1", 13),
    (PREDICATES, "0p0", "BRA", "0p0", 13),
    ("IADD3 LEA", "1p0 1p1", "IADD3.X LEA.HI.X", "4p0 4p1 5p0", 4),
    ("IADD3 LEA", "1p0", "IMAD.X", "4p0", 5),
    ("UIADD3", "0", "UIADD3 ULEA USHF ULOP3", "*", 4),
    ("UIADD3 UIADD3.64 ULOP3 USGXT", "0", "HGMMA.64x64x16.F32 HGMMA.64x128x16.F32", "*", 9),
    ("ULEA", "0", "MOV IADD3 LEA IMAD VIADD", "1 2 3", 6),
    ("ULDC ULDC.64", "0 0+1", "IMAD ISETP IADD3 UIADD3", "*", 2),
    ("UMOV", "0", "UIADD3 ULEA", "*", 2),
    ("R2UR", "0", "*", "*", 13),
    ("HMMA.16816.F32 HMMA.16816.F32.BF16", "*", "HMMA.16816.F32 HMMA.16816.F32.BF16", "3 3+1 3+2 3+3", 24),
    ("VOTEU", "0p0", "UIADD3 ULDC USHF", "G", 5),
    # Smaller than what was collected by hand, from more code; not all of them were read one by one.
    ("ULDC.64", "0 0+1", "LDG LDG.64 LDG.128", "1d 1d+1", 2),  # by hand 6, the address set the pace
    ("UMOV", "0", "IMAD", "3", 2),  # by hand 5 to 6
    ("ULEA", "0", "LDSM.16.M88.4 LDSM.16.MT88.4", "1u", 9),  # by hand 12
    ("HMMA.16816.F32", "*", "FMNMX", "1 2", 24),  # by hand 25
]


@pytest.mark.parametrize(("first", "out", "second", "into", "cycles"), KNOWN)
def test_sm_90_agrees_with_what_was_collected_by_hand(
    sm_90: LatencyTable, first: str, out: str, second: str, into: str, cycles: int
) -> None:
    assert least(sm_90, "raw", first, out, second, into) == cycles


def test_uniform_registers_are_read_before_they_are_written_again(sm_90: LatencyTable) -> None:
    """A UIMAD's operand may be loaded anew after 3 cycles, written by another uniform operation after 2."""
    uniform = "UIMAD ULEA UIADD3 USGXT USHF"
    assert least(sm_90, "war", uniform, "1 2 3", "ULDC ULDC.64 UMOV", "0 0+1") == 3
    assert least(sm_90, "war", uniform, "1 2 3", "UIADD3 ULEA USHF UIMAD", "0") == 2
    assert least(sm_90, "war", "IMAD ISETP", "1 2 3", "ULDC ULDC.64", "0 0+1") == 1


def test_products_hold_their_sources(sm_90: LatencyTable) -> None:
    products = "HMMA.16816.F32 HMMA.16816.F32.BF16"
    assert least(sm_90, "war", products, "*", "IMAD IADD3 FADD FMUL LOP3 MOV FSEL " + products, "*") >= 6


def test_fixed_results_land_before_a_load_replaces_them(sm_90: LatencyTable) -> None:
    assert least(sm_90, "waw", "*", "*", "LDG LDG.64 LDG.128 LDS MUFU", "*") == 6


@pytest.mark.parametrize("name", TABLES)
def test_stalls_and_spacings(name: str) -> None:
    table = LatencyTable.load(name)
    stalls = {"EXIT": 5, "BRA": 5, "BSYNC": 5, "MEMBAR": 6}
    stalls["CALL"] = 5 if name == "sm_90" else 1
    for key, cycles in stalls.items():
        assert table.rows["issue", key, "", "*", ""].cycles == cycles
    assert table.spacing("BAR.SYNC", "@memory").cycles == 6  # type: ignore[union-attr]
    assert table.spacing("@setter", "@waiter").cycles == 2  # type: ignore[union-attr]
    if name in ("sm_80", "sm_90"):
        assert table.spacing("MUFU", "MUFU").cycles == 8  # type: ignore[union-attr]
        assert table.spacing("S2UR", "S2UR").cycles == 8  # type: ignore[union-attr]


def test_sm_90_spaces_memory_operations_by_four(sm_90: LatencyTable) -> None:
    assert sm_90.spacing("@memory", "@memory").cycles == 4  # type: ignore[union-attr]
    assert sm_90.rows["issue", "DEPBAR", "", "*", ""].cycles == 4


@pytest.mark.parametrize("name", TABLES)
def test_provenance_says_what_it_was_mined_from(name: str) -> None:
    table = LatencyTable.load(name)
    assert table.provenance["cubins"] >= 70
    assert table.provenance["skipped"] == 0
    assert table.provenance["tools"] and table.provenance["command"].startswith("sassafras latency mine")
    assert all(seen.where for seen in table.rows.values())


@pytest.mark.parametrize("name", TABLES)
def test_only_floors_of_supported_classes_are_answered(name: str) -> None:
    table = LatencyTable.load(name)
    known = [key for key in table.rows if table.distance(*key) is not None]
    assert 0.2 < len(known) / len(table) < 0.8, "both kinds must be there, or the thresholds do nothing"
    for key, seen in table.rows.items():
        bound = table.bound(*key)
        if bound is not None and key[0] != "waw":
            assert bound == seen.cycles


def test_unknown_pairs_keep_the_original_distance_or_what_is_enough(sm_90: LatencyTable) -> None:
    rare = ("raw", "IADD3", "0", "LDG", "1a")  # 9 by a chain of carries; addresses need 5
    assert sm_90.distance(*rare) is None
    assert sm_90.needed(*rare, 30) == sm_90.rows[rare].cycles
    assert sm_90.needed(*rare, 7) == 7
    assert sm_90.needed("raw", "FADD", "0", "FADD", "1", 30) == 4
    assert sm_90.needed("raw", "FADD", "0", "FADD", "1", 2) == 4, (
        "what is known is required, whatever was there"
    )
    never = ("raw", "NOSUCH", "0", "FADD", "1")
    assert sm_90.distance(*never) is None and sm_90.bound(*never) is None
    assert sm_90.needed(*never, 30) == 30


def test_save_and_load_give_the_same_table(sm_90: LatencyTable, tmp_path: Path) -> None:
    sm_90.save(tmp_path / "copy.json")
    copy = LatencyTable.load("sm_90", tmp_path / "copy.json")
    assert (copy.rows, copy.classes, copy.provenance) == (sm_90.rows, sm_90.classes, sm_90.provenance)
    packaged = Path(LatencyTable.load.__func__.__code__.co_filename).parent / "data" / "sm_90.json"  # type: ignore[attr-defined]
    assert (tmp_path / "copy.json").read_text() == packaged.read_text()


def _damaged(change: str) -> object:
    data = {
        "format": "sassafras-latency", "version": 2, "arch": "sm_90",
        "thresholds": {"samples": 20, "kernels": 6}, "provenance": {}, "classes": [],
        "rows": [["raw", "FADD", "0", "FADD", "1", 4, 9, 3, 2, "a+0x10"]],
    }  # fmt: skip
    row = data["rows"][0]  # type: ignore[index]
    match change:
        case "foreign":
            return {"latencies": [1, 2]}
        case "version":
            data["version"] = 1
        case "arch":
            data["arch"] = "sm_80"
        case "empty":
            data["rows"] = []
        case "short":
            del row[0]
        case "type":
            row[5] = "4"
        case "truth":
            row[5] = True
        case "numbers":
            row[7] = 99
        case "kind":
            row[0] = "rar"
        case "twice":
            data["rows"] = [row, row]
        case "thresholds":
            data["thresholds"] = {"samples": 0, "kernels": 6}
        case "classes":
            data["classes"] = [["raw", "fma r"]]
    return data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("foreign", "not a latency table"),
        ("version", "version 1"),
        ("arch", "'sm_80' where 'sm_90'"),
        ("empty", "no rows"),
        ("short", "row 0: a row needs 10"),
        ("type", "row 0: a column has the wrong type"),
        ("truth", "row 0: a column has the wrong type"),
        ("numbers", "row 0: impossible"),
        ("kind", "row 0: impossible"),
        ("twice", "row 1: row given twice"),
        ("thresholds", "thresholds"),
        ("classes", "class 0"),
    ],
)
def test_damaged_tables_are_refused(change: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    file.write_text(json.dumps(_damaged(change)))
    with pytest.raises(LatencyTableError) as caught:
        LatencyTable.load("sm_90", file)
    assert message in str(caught.value)


def test_missing_and_unreadable_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LatencyTableError, match="no latency table") as caught:
        LatencyTable.load("sm_70")
    assert "sm_90" in str(caught.value), "the hint lists what there is"
    (tmp_path / "half.json").write_text('{"format": "sassafras-lat')
    with pytest.raises(LatencyTableError, match="JSON"):
        LatencyTable.load("sm_90", tmp_path / "half.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LatencyTableError, match=r"bytes\.json: cannot be read: .utf-8"):
        LatencyTable.load("sm_90", tmp_path / "bytes.json")


def test_what_only_its_own_unit_reads_says_nothing_of_when_a_result_is_written(sm_90: LatencyTable) -> None:
    """An H200 lost ULDC's value at 4 and 5 cycles; the uniform unit itself takes UIMAD.WIDE's after 4."""
    pair = ("waw", "UIMAD.WIDE", "0", "ULDC", "0")
    assert sm_90.distance("raw", "UIMAD.WIDE", "0", "USHF", "1").cycles == 4  # type: ignore[union-attr]
    assert sm_90.bound(*pair) is None and sm_90.needed(*pair, 7) == 7
    # what other units read is there after its longest latency
    assert sm_90.needed("waw", "UIADD3", "0", "ULDC", "0", 30) == 6
