"""Which architectures are parsed, validated, scheduled and measured."""

from __future__ import annotations

from dataclasses import dataclass

from sassafras.core.errors import UnsupportedArch


@dataclass(frozen=True, slots=True)
class Arch:
    """What may be done with an architecture.

    Attributes:
        name: ``sm_90a``.
        scheduled: True, or ``"by name"`` (only when the user asks for this arch explicitly), or False.
        measured: schedules for it have run on that hardware here.
        table: the latency table's name, shared by ``sm_90`` and ``sm_90a``.
    """

    name: str
    scheduled: bool | str
    measured: bool
    table: str


ARCHS: dict[str, Arch] = {
    a.name: a
    for a in (
        Arch("sm_80", "by name", False, "sm_80"),
        Arch("sm_86", "by name", False, "sm_86"),
        Arch("sm_89", "by name", False, "sm_89"),
        Arch("sm_90", True, True, "sm_90"),
        Arch("sm_90a", True, True, "sm_90"),
        *(Arch(f"sm_{n}", False, False, "") for n in ("100", "100a", "103a", "120", "120a", "121a")),
    )
}


def get(name: str) -> Arch:
    """Facts about an architecture.

    Raises:
        UnsupportedArch: it is not one of ours.
    """
    if name not in ARCHS:
        raise UnsupportedArch(f"architecture {name} is not known", hint="one of " + ", ".join(ARCHS))
    return ARCHS[name]


def check_schedulable(name: str, asked_by_name: bool = False) -> Arch:
    """The architecture, if its kernels may be rescheduled.

    Args:
        name: the cubin's architecture.
        asked_by_name: the user named this architecture on purpose.

    Raises:
        UnsupportedArch: with the reason.
    """
    arch = get(name)
    if arch.scheduled is False:
        raise UnsupportedArch(
            f"{name} is parsed but not scheduled: its cubins carry a second copy of the code "
            "(.nv.capmerc/.nv.merc sections) and which copy the driver runs is unknown",
            hint="sm_90 and sm_90a are scheduled; sm_80, sm_86 and sm_89 when asked for by name",
        )
    if arch.scheduled == "by name" and not asked_by_name:
        raise UnsupportedArch(
            f"schedules for {name} have never been measured here", hint=f"ask for it by name: --arch {name}"
        )
    return arch
