"""What a compiled kernel may do before it has waited for the kernels before it.

A dependent launch begins while the one before it still runs, and `griddepcontrol.wait` (ACQBULK
in machine code) returns when that has ended and its memory is seen. A kernel may be launched so
if each of its paths meets the wait before anything else than arithmetic and its own shared memory:
it then reads and writes nothing too early, and has not ended before the one before it has, for
whoever waits for it in turn.

Followed are all edges of the control-flow graph from the kernel's entry up to the wait. What is met
on the way must be known to be harmless; everything else is told: accesses, exits, calls.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_HARMLESS_SASS = re.compile(
    "MOV|UMOV|P2R|R2P|CS2R|S2R|S2UR|R2UR|LDC|LDCU|ULDC|NOP|"
    "IMAD|UIMAD|IADD3|UIADD3|VIADD|LEA|ULEA|LOP3|ULOP3|PLOP3|UPLOP3|SHF|USHF|SEL|USEL|PRMT|SGXT|"
    "FADD|FMUL|FFMA|HFMA2|SHFL|ISETP|UISETP|ELECT|VOTEU|IABS|I2F|F2I|I2FP|MUFU|"
    "BRA|BSSY|BSYNC|WARPSYNC|BAR|DEPBAR|NANOSLEEP|PREEXIT|"
    # Shared memory, and columns of tensor memory, which a program takes before it begins.
    "LDS|STS|ATOMS|UTCATOMSWS|UVIRTCOUNT|SYNCS"
)
_HARMLESS_PTX = re.compile(
    "mov|add|sub|mul|mad|fma|shl|shr|shf|and|or|xor|not|setp|selp|cvt|cvta|min|max|abs|neg|lop3|"
    "prmt|bfe|bfi|div|rem|elect|bra|bar|barrier|griddepcontrol|tcgen05"
)
_OF_A_SPACE = frozenset(("ld", "st", "atom", "mbarrier"))
_OWN_SPACES = (".param", ".shared")

_LABEL_LINE = re.compile(r"^([.$\w]+):$")
_SASS = re.compile(r"^/\*[0-9a-f]+\*/\s+\{?\s*(@\S+\s+)?([A-Z0-9]+)([^;]*);?")
_SASS_TARGET = re.compile(r"`\(([^)]+)\)")
_PTX = re.compile(r"^(@\S+\s+)?([a-z0-9]+)(\S*)\s*(.*)$", re.DOTALL)
_PTX_TARGET = re.compile(r"\$\w+")


@dataclass(frozen=True, slots=True)
class _Instruction:
    text: str
    is_harmless: bool
    is_wait: bool
    """On each path: not under a predicate."""
    falls_through: bool
    targets: tuple[str, ...]


@dataclass(slots=True)
class _Code:
    instructions: list[_Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


def met_before_wait_in_ptx(ptx: str) -> list[str]:
    """Return what the entry of a kernel's PTX may execute before its wait, and must not."""
    return _met(_read_ptx(ptx))


def met_before_wait_in_sass(disassembled: str, kernel: str) -> list[str]:
    """Return the same of machine code, as `nvdisasm -c` writes it."""
    return _met(_read_sass(disassembled, kernel))


def _met(code: _Code) -> list[str]:
    """Follow each path from the entry to its first wait."""
    told: list[str] = []
    seen: set[int] = set()
    ahead = [0]
    while ahead:
        place = ahead.pop()
        if place in seen:
            continue
        seen.add(place)
        if place >= len(code.instructions):
            told.append("the end of the code")
            continue
        one = code.instructions[place]
        if one.is_wait:
            continue
        if not one.is_harmless:
            told.append(one.text)
            continue
        ahead += [code.labels[target] for target in one.targets]
        if one.falls_through:
            ahead.append(place + 1)
    return told


def _read_sass(disassembled: str, kernel: str) -> _Code:
    code = _Code()
    _, found, body = disassembled.partition(f"\n.text.{kernel}:\n")
    if not found:
        raise ValueError(f"no code of {kernel} was found")
    for line in map(str.strip, body.splitlines()):
        if line.startswith(".section"):
            break
        if label := _LABEL_LINE.match(line):
            code.labels[label[1]] = len(code.instructions)
        elif read := _SASS.match(line):
            predicate, opcode, rest = read.groups()
            is_trap = opcode == "CALL" and "_guardrail_trap_" in rest  # ends all that runs
            is_harmless = is_trap or _HARMLESS_SASS.fullmatch(opcode) is not None
            targets = tuple(_SASS_TARGET.findall(rest)) if is_harmless and not is_trap else ()
            # Other operands of a branch are conditions as well.
            is_jump = opcode == "BRA" and rest.split("`")[0].strip(" .U") == ""
            one = _Instruction(
                text=read[0].partition("*/")[2].strip(),
                is_harmless=is_harmless,
                is_wait=opcode == "ACQBULK" and predicate is None,
                falls_through=not (is_jump and predicate is None),
                targets=targets,
            )
            code.instructions.append(one)
    return code


def _read_ptx(ptx: str) -> _Code:
    code = _Code()
    _, found, entry = ptx.partition(".entry ")
    if not found:
        raise ValueError("the PTX has no entry")
    _, _, body = entry.partition("\n{")
    for statement in _statements(body):
        if label := _LABEL_LINE.match(statement):
            code.labels[label[1]] = len(code.instructions)
            continue
        read = _PTX.match(statement)
        if read is None or statement.startswith("."):
            continue  # a directive
        predicate, opcode, kind, operands = read.groups()
        is_own = opcode in _OF_A_SPACE and any(space in kind for space in _OWN_SPACES)
        one = _Instruction(
            text=" ".join(statement.split()),
            is_harmless=is_own or _HARMLESS_PTX.fullmatch(opcode) is not None,
            is_wait=opcode == "griddepcontrol" and kind == ".wait" and predicate is None,
            falls_through=not (opcode == "bra" and predicate is None),
            targets=tuple(_PTX_TARGET.findall(operands)) if opcode == "bra" else (),
        )
        code.instructions.append(one)
    return code


def _statements(body: str) -> Iterator[str]:
    """Yield labels and what ends with a semicolon, without comments and braces of blocks."""
    written = ""
    for line in body.splitlines():
        line = line.partition("//")[0].strip()  # noqa: PLW2901 - the same line, less its comment
        if line.startswith((".loc", ".section", ".file")):
            continue
        if not written and _LABEL_LINE.match(line):
            yield line
            continue
        *ended, rest = line.split(";")
        for each in ended:
            yield (written + " " + each).strip().removeprefix("{").removeprefix("}").strip()
            written = ""
        written = (written + " " + rest).strip()
        if written in {"{", "}", "{}"}:
            written = ""
