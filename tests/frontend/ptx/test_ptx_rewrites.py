"""Rewrites of PTX: each in the SASS of the real ptxas, each illegal one refused with its reason."""

from __future__ import annotations

import re

import pytest

from sassafras.core import SassafrasError
from sassafras.frontend._ptxas import assemble
from sassafras.frontend.ptx import PtxState, Rewrite, fingerprint, names
from sassafras.frontend.ptx.reader import Entry
from sassafras.frontend.ptx.rewrites import (
    KINDS,
    POLICIES,
    BlockSize,
    Cache,
    EntryName,
    Frequency,
    L2Policy,
    NoUnroll,
    Prefetch,
    PrefetchSize,
    Registers,
    SharedSpill,
    from_json,
    refusal,
    write,
)
from sassafras.frontend.ptxas_options import PtxasOptions
from sassafras.sass import Cubin
from sassafras.sass.eiattr import PLAIN_ATTRIBUTES
from tests.frontend.ptx.compiled_ptx import LOOP, code, needs_cuda_13, releases, space


def made_by(name: str, *rewrites: Rewrite, ptxas: str = "") -> bytes:
    """A kernel of the suite under rewrites."""
    return space(name).build(PtxState(PtxasOptions(ptxas), rewrites)).kernel.cubin


def print_of(name: str, *rewrites: Rewrite, ptxas: str = "") -> str:
    return fingerprint(made_by(name, *rewrites, ptxas=ptxas))


def words(name: str, *rewrites: Rewrite, ptxas: str = "") -> list[set[str]]:
    """Opcodes with their modifiers. A call of nvdisasm takes long: few kernels, many changes each."""
    texts = code(made_by(name, *rewrites, ptxas=ptxas), space(name).kernel.name)
    return [set(re.sub(r"^@!?U?P\w+ ", "", text).split(" ")[0].split(".")) for text in texts]


def count(found: list[set[str]], *words: str) -> int:
    return sum(set(words) <= one for one in found)


def test_accesses_are_qualified_one_by_one() -> None:
    before = words("softmax")
    after = words(
        "softmax", Cache(0, "L1::evict_last"), PrefetchSize(0, "L2::256B"), Cache(1, "cg"), Prefetch(1, "L2"),
        Cache(2, "wt"), Cache(3, "L1::no_allocate"), PrefetchSize(1, "L2::64B"),
    )  # fmt: skip
    assert (
        count(before, "LDG") == count(after, "LDG") == 2 and count(before, "STG") == count(after, "STG") == 2
    )
    assert count(after, "LDG", "EL", "LTC256B") == 1 == count(after, "LDG", "STRONG", "GPU", "LTC64B")
    assert count(after, "STG", "STRONG", "SYS") == 1 == count(after, "STG", "NA")
    assert count(after, "CCTL", "PF2") == 1 and not count(before, "CCTL")
    plain = [w for w in before if w & {"LDG", "STG"}]
    assert not any(w & {"EL", "NA", "STRONG", "LTC64B", "LTC256B"} for w in plain)


@pytest.mark.parametrize(
    ("name", "rewrites", "wanted"),
    [
        ("rmsnorm", [Cache(1, "L1::evict_first"), Cache(3, "cs")], [("LDG", "EF"), ("STG", "EF")]),
        ("layernorm", [Prefetch(1, "L1"), Cache(2, "L1::evict_unchanged")], [("CCTL", "PF1"), ("LDG", "EU")]),
    ],
)
def test_other_qualifiers(name: str, rewrites: list[Rewrite], wanted: list[tuple[str, str]]) -> None:
    found = words(name, *rewrites)
    assert [count(found, *pair) for pair in wanted] == [1] * len(wanted)


def test_copies_go_through_the_first_cache_and_fetch_more() -> None:
    wide = [a.number for a in space("paged_decode").entry.accesses if a.kind == "cp.async" and a.width == 16]
    found = words("paged_decode", *(Cache(n, "ca") for n in wide), PrefetchSize(wide[0], "L2::128B"))
    assert count(found, "LDGSTS") >= len(wide) > 0 == count(found, "LDGSTS", "BYPASS")
    assert count(found, "LDGSTS", "LTC128B") == 1
    assert print_of("paged_decode") != print_of("paged_decode", Cache(wide[0], "ca"))


@pytest.mark.parametrize("name", ["softmax", "paged_decode"])
def test_a_policy_for_the_second_cache_is_made_and_named(name: str) -> None:
    made = space(name)
    text = write(made.entry, [L2Policy(0, "evict_first"), L2Policy(1, "evict_first")], made.kernel.threads)
    assert text.count("createpolicy") == 1 and text.count("L2::cache_hint") == 2
    prints = {print_of(name), *(print_of(name, L2Policy(0, p)) for p in POLICIES)}
    assert len(prints) == 1 + len(POLICIES)


def test_registers_are_limited() -> None:
    def used(*rewrites: Rewrite) -> int:
        made = space("gemv_int4").build(PtxState(rewrites=rewrites)).kernel
        return Cubin.parse(made.cubin).entries[made.name].registers

    own = used()
    assert used(Registers("maxnreg", 40)) <= 40 < own
    assert used(Registers("minnctapersm", 12)) <= 65536 // (12 * 128) < own


@pytest.mark.parametrize("release", ["12", "13"])
def test_an_entry_gets_its_name_back(release: str) -> None:
    if release not in releases():
        pytest.skip(f"no ptxas of CUDA {release}")
    made = space("cross_entropy")
    own, other = made.kernel.name, f"cutlass_{made.kernel.name}"
    text = write(made.entry, [EntryName("cutlass_")], made.kernel.threads)
    assert f".entry {other}(" in text and f" {own}_param_0" in text
    seen = assemble(text, "sm_90a", releases()[release], flags=made.base_flags)
    back = names.restore(seen, other, own)
    before, after = Cubin.parse(seen), Cubin.parse(back)
    assert list(after.entries) == [own] and len(back) == len(seen)
    mine, its = after.entries[own], before.entries[other]
    assert mine.text.data == its.text.data and mine.registers == its.registers > 0
    assert [(r.attribute, r.payload) for r in mine.info] == [(r.attribute, r.payload) for r in its.info]
    assert len(code(back, own)) == len(mine.text.data) // 16
    left = [s.name for s in after.sections if b"cutlass_" in s.data]
    assert all("debug" in section for section in left), left
    with pytest.raises(SassafrasError, match="no longer form"):
        names.restore(made.kernel.cubin, own, "other")


@pytest.mark.parametrize("name", ["add", "ret", "bra", "loop2"])
def test_an_entry_may_be_called_as_an_instruction_is(name: str) -> None:
    made = LOOP.replace("LIMIT", "%r1").replace("entry loop", f"entry\n{name}")
    text = write(Entry.read(made, name), [EntryName("k_")], 128)
    assert re.sub(rf"entry\s+k_{name}", "entry loop", text) == LOOP.replace("LIMIT", "%r1")
    tool = next(iter(releases().values()))
    back = Cubin.parse(names.restore(assemble(text, "sm_90a", tool), f"k_{name}", name))
    assert back.entries[name].text.data == Cubin.parse(assemble(made, "sm_90a", tool)).entries[name].text.data


def test_where_an_entry_is_named_it_gets_its_other_name_too() -> None:
    made = LOOP.replace("LIMIT", "%r1").replace("entry loop", "entry mov")
    made = made.replace("mov.u32 %r2, 0;", "mov.u32 %r2, 0; mov.u64 %rd2, mov; st.global.u64 [%rd1], %rd2;")
    made = made.replace(".visible", ".visible .entry mov(.param .u64 a, .param .u32 n); .visible", 1)
    made += ".global .u64 t[1] = { mov};\n"
    text = write(Entry.read(made, "mov"), [EntryName("k_")], 128)
    assert text.replace("k_mov", "mov") == made and text.count("k_mov") == 4
    assert text.count(" mov.u32") == 1 and "mov.u64 %rd2, k_mov;" in text and "{ k_mov}" in text
    assert assemble(text, "sm_90a", next(iter(releases().values())))


def test_ptxas_looks_at_the_name() -> None:
    # (why names are in the space)
    assert print_of("cross_entropy", EntryName("cutlass_")) != print_of("cross_entropy")
    assert print_of("cross_entropy", EntryName("k_")) == print_of("cross_entropy")


def loop(limit: str, *rewrites: Rewrite, threads: int = 128, ptxas: str = "12") -> bytes:
    text = write(Entry.read(LOOP.replace("LIMIT", limit), "loop"), rewrites, threads)
    return assemble(text, "sm_90a", releases().get(ptxas) or next(iter(releases().values())))


def test_a_loop_stays_rolled() -> None:
    header = Entry.read(LOOP, "loop").loops[0]

    def size(limit: str, *rewrites: Rewrite) -> int:
        return Cubin.parse(loop(limit, *rewrites)).entries["loop"].text.size

    assert sum("LDG" in text for text in code(loop("16"), "loop")) == 16
    assert sum("LDG" in text for text in code(loop("16", NoUnroll(header)), "loop")) == 1
    assert size("16", NoUnroll(-1)) == size("16", NoUnroll(header)) < size("16")
    assert size("%r1", NoUnroll(header)) < size("%r1")


def test_the_size_of_the_block_is_told() -> None:
    def attributes(*rewrites: Rewrite) -> set[str]:
        return {
            PLAIN_ATTRIBUTES.get(r.attribute, "")
            for r in Cubin.parse(loop("%r1", *rewrites)).entries["loop"].info
        }

    told = {d: attributes(BlockSize(d, 128)) - attributes() for d in ("maxntid", "reqntid")}
    assert told == {"maxntid": {"MAX_THREADS"}, "reqntid": {"REQNTID"}}
    both = (BlockSize("maxntid", 128), Registers("minnctapersm", 16))
    assert Cubin.parse(loop("%r1", *both)).entries["loop"].registers <= 32


def test_spills_go_to_shared_memory() -> None:
    needs_cuda_13()
    new, few = releases()["13"], Registers("maxnreg", 24)
    local, shared = words("rmsnorm", few, ptxas=new), words("rmsnorm", few, SharedSpill(), ptxas=new)
    assert count(local, "STL") > 0 == count(shared, "STL") and count(shared, "STS") >= count(local, "STL")
    made = space("rmsnorm")  # without spills the code is known already
    same = [made.build(PtxState(PtxasOptions(new), r)).digest for r in ((), (SharedSpill(),))]
    assert same[0] == same[1]


def test_a_frequency_is_a_hint_and_the_version_alone_is_none() -> None:
    needs_cuda_13()
    new, made = releases()["13"], space("cross_entropy")
    hint = tuple(Frequency(at, 1000) for at in made.entry.loops)
    assert print_of("cross_entropy", *hint, ptxas=new) != print_of("cross_entropy", ptxas=new)
    text = write(made.entry, hint, made.kernel.threads)
    assert ".version 9.0" in text and ".version 8.7" in made.ptx
    raised = made.ptx.replace(".version 8.7", ".version 9.0")
    both = [fingerprint(assemble(t, "sm_90a", new, flags=made.base_flags)) for t in (made.ptx, raised)]
    assert both[0] == both[1]


@pytest.mark.parametrize("name", ["softmax", "gemv_int8", "paged_decode"])
def test_everything_together_is_assembled(name: str) -> None:
    made = space(name)
    rewrites: list[Rewrite] = [EntryName("k_"), NoUnroll(-1), *(NoUnroll(at) for at in made.entry.loops)]
    for access in made.entry.accesses:
        for kind in (Cache, PrefetchSize, L2Policy, Prefetch):
            values = kind.values(made.entry, access)
            some = [kind(access.number, v) for v in values[access.number % max(len(values), 1) :][:1]]
            rewrites += [one for one in some if one.release(made.entry) < (13, 0)]
    assert print_of(name, *rewrites) != print_of(name)


@pytest.mark.parametrize(
    "rewrite",
    [Cache(0, "L1::evict_last"), PrefetchSize(0, "L2::256B"), L2Policy(0, "evict_first"), Cache(1, "cs")],
)
def test_ptx_that_is_too_old_for_a_qualifier_gets_a_newer_version(rewrite: Rewrite) -> None:
    old = LOOP.replace("LIMIT", "%r1").replace(".version 8.7", ".version 7.0").replace("sm_90a", "sm_80")
    text = write(Entry.read(old, "loop"), [rewrite], 128)
    assert ".version 7.4" in text and assemble(text, "sm_80", next(iter(releases().values())))
    assert ".version 8.7" in write(Entry.read(LOOP, "loop"), [rewrite], 128)


REDISTRIBUTES = LOOP.replace("HEAD:", "setmaxnreg.inc.sync.aligned.u32 64; HEAD:")
CALLED = LOOP.replace(".visible", ".func more() { setmaxnreg.inc.sync.aligned.u32 64; ret; } .visible")
BOUNDED = LOOP.replace("\n{\n", "\n.maxntid 128\n.maxnreg 64\n{\n")
DYNAMIC = LOOP.replace(".visible", ".extern .shared .align 16 .b8 s[]; .visible")


@pytest.mark.parametrize(
    ("text", "rewrites", "why"),
    [
        (LOOP, [Registers("maxnreg", 8)], "has 16 to 255 registers"),
        (LOOP, [Registers("maxnreg", 256)], "has 16 to 255 registers"),
        (LOOP, [Registers("minnctapersm", 17)], "holds 2048 threads"),
        (LOOP, [Registers("maxclusterrank", 1)], "holds 2048 threads"),
        (LOOP, [Registers("minnctapersm", 2)], "is ignored without"),
        (BOUNDED, [Registers("minnctapersm", 2)], "wins over"),
        (REDISTRIBUTES, [Registers("maxnreg", 64)], "setmaxnreg"),
        (REDISTRIBUTES, [SharedSpill()], "setmaxnreg"),
        (CALLED, [Registers("maxnreg", 64)], "setmaxnreg"),
        (DYNAMIC, [SharedSpill()], "exclude each other"),
        (BOUNDED, [BlockSize("reqntid", 128)], "exclude each other"),
        (LOOP, [BlockSize("reqntid", 256)], "the launch has 128 threads"),
        (LOOP, [NoUnroll(0)], "no header of a loop"),
        (LOOP, [Frequency(-1, 5)], "no header of a loop"),
        (LOOP, [Cache(0, "cv")], "does not go with this access"),
        (LOOP, [Cache(0, "lu")], "does not go with this access"),
        (LOOP, [Cache(0, "wt")], "does not go with this access"),
        (LOOP, [Cache(1, "ca")], "does not go with this access"),
        (LOOP, [Cache(0, "nc")], "does not go with this access"),
        (LOOP.replace("ld.global", "ld.global.cg"), [Cache(0, "ca")], "does not go with this access"),
        (LOOP.replace("st.global", "st.global.wt"), [Cache(1, "cs")], "does not go with this access"),
        (LOOP, [Cache(2, "cg")], "no such access"),
        (LOOP, [PrefetchSize(1, "L2::64B")], "does not go with this access"),
        (LOOP, [L2Policy(0, "evict_never")], "does not go with this access"),
        (LOOP, [Prefetch(0, "L2")], "does not go with this access"),
        (LOOP, [EntryName("9")], "begins no identifier"),
        (LOOP.replace("HEAD", "k_loop"), [EntryName("k_")], "in the PTX already"),
        (LOOP, [Cache(0, "ca"), Cache(0, "cg")], "change the same"),
        (LOOP, [Registers("maxnreg", 64), Registers("minnctapersm", 1)], "change the same"),
    ],
)  # fmt: skip
def test_illegal_rewrites_are_refused(text: str, rewrites: list[Rewrite], why: str) -> None:
    entry = Entry.read(text, "loop")
    assert why in refusal(entry, rewrites, 128)
    with pytest.raises(SassafrasError, match=re.escape(why)):
        write(entry, rewrites, 128)


def test_directives_of_the_source_are_replaced() -> None:
    text = write(Entry.read(BOUNDED, "loop"), [Registers("maxnreg", 32)], 128)
    assert text == BOUNDED.replace(".maxnreg 64", ".maxnreg 32")


def test_rewrites_are_kept_as_json() -> None:
    every = [EntryName("k_"), Registers("maxnreg", 64), BlockSize("maxntid", 32), SharedSpill(), NoUnroll(-1)]
    every += [Frequency(3, 9), Cache(1, "cs"), PrefetchSize(0, "L2::64B"), L2Policy(2, "evict_last")]
    every += [Prefetch(1, "L2")]
    assert {type(one) for one in every} == set(KINDS.values())
    assert [from_json(one.to_json()) for one in every] == every
    assert Registers("maxnreg", 64).to_json() == {"rewrite": "Registers", "directive": "maxnreg", "count": 64}
    for bad in (
        {},
        {"rewrite": "Fmad"},
        {"rewrite": "Cache", "access": 1},
        {"rewrite": "NoUnroll", "at": "1"},
    ):
        with pytest.raises(SassafrasError, match="is no rewrite of PTX"):
            from_json(bad)
