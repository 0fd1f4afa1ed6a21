"""What leaves of a compiler's output."""

from __future__ import annotations

from sassafras.evaluate.source.messages import own_messages

TEXT = "\n".join(f"line {n} of the candidate" for n in range(1, 9))


def test_messages_about_the_candidates_file_are_kept_with_the_candidates_own_line() -> None:
    output = (
        './kernel.cu(3): error: identifier "z" is undefined\n'
        "    this line is what the compiler printed\n"
        "               ^\n\n"
        './kernel.cu(5): warning #177-D: variable "a" was declared but never referenced\n'
        "kernel.cu:7:10: fatal error: nothing.h: No such file or directory\n"
        "kernel.cu(2): error: no instance of function template matches the argument list\n"
        "            argument types are: (int, float)\n"
        '1 error detected in the compilation of "./kernel.cu".\n'
        "ptxas fatal   : Unresolved extern function 'f'\n"
    )
    assert own_messages(output, TEXT).splitlines() == [
        'line 3: error: identifier "z" is undefined', "    line 3 of the candidate",
        'line 5: warning: variable "a" was declared but never referenced', "    line 5 of the candidate",
        "line 7: fatal error: nothing.h: No such file or directory", "    line 7 of the candidate",
        "line 2: error: no instance of function template matches the argument list",
        "    argument types are: (int, float)", "    line 2 of the candidate",
        "ptxas fatal   : Unresolved extern function 'f'",
    ]  # fmt: skip


def test_the_line_is_the_one_that_the_compiler_counts() -> None:
    kept = own_messages("kernel.cu(2): error: no", "// a\fb\u2028c\r\nint d\r\n")
    assert kept.splitlines() == ["line 2: error: no", "    int d"]


def test_nothing_of_another_file_leaves() -> None:
    output = (
        '/etc/passwd(1): error: identifier "root" is undefined\n  root:x:0:0:s3cret\n      ^\n'
        "In file included from ./kernel.cu:1:\nsecret.h:1:2: error: #error s3cret\n"
        "    1 | #error s3cret\n      |  ^~~~~\n"
        './evil/kernel.cu(1): error: s3cret\nxkernel.cu(1): error: s3cret\n'
        'At end of source: error: expected a "}"\n'
    )  # fmt: skip
    kept = own_messages(output, TEXT)
    assert "s3cret" not in kept
    assert "root" not in kept
    assert kept == "(messages about other files are left out)"


def test_a_line_that_is_not_there_is_not_quoted() -> None:
    assert own_messages("kernel.cu(999): error: x\nkernel.cu(0): error: y\n", TEXT).splitlines() == [
        "line 999: error: x", "line 0: error: y",
    ]  # fmt: skip
