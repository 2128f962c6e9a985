"""Makes malformed files from valid ones, by number: the same number gives the same damage.

``CASES`` says how many of them every reader is given; a test adds them up.
"""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

from vestige.errors import VestigeError

CASES = {
    "observation": 90,
    "captured gradient": 60,
    "reconstruction": 60,
    "trial": 80,
    "shard": 60,
    "captured step": 60,
    "backbone": 60,
    "model weights": 50,
    "features": 30,
    "prior weights": 30,
    "prior configuration": 90,
    "record": 200,
    "head study": 30,
    "noise study": 30,
    "record risk": 30,
    "comparison": 30,
    "manifest": 60,
    "mechanism": 140,
    "npz": 110,
    "idx": 60,
    "cifar archive": 40,
    "picture": 110,
    "audit file": 70,
    "command line": 50,
}

LONGEST_SENTENCE = 700
"""A sentence names a file, and a test's folder has a long name."""


def one_sentence(problem: VestigeError) -> str:
    """What a user reads: one line that ends as a sentence does."""
    text = str(problem)
    assert "\n" not in text, text
    assert text.endswith((".", "?")), text
    assert len(text) < LONGEST_SENTENCE, text
    return text


def refused(call: Callable[[], object]) -> bool:
    """Whether a call says no in one sentence; any other error goes through."""
    try:
        call()
    except VestigeError as problem:
        one_sentence(problem)
        return True
    return False


def tried(
    reader: str, damage: Callable[[random.Random], object], *, least_refused: float = 0.3
) -> None:
    """Try all cases of a reader: each is read or refused, and a share at least is refused.

    Damage may leave a file that means something, such as a flipped bit of a weight.
    """
    ran, said_no, broken = 0, 0, []
    for number in range(CASES[reader]):
        rng = random.Random(f"{reader} {number}")
        try:
            said_no += refused(lambda: damage(rng))  # noqa: B023
        except Exception as error:
            broken.append(f"{reader} {number}: {type(error).__name__}: {str(error)[:200]}")
        ran += 1
    assert not broken, "\n".join(broken)
    assert ran == CASES[reader]
    assert said_no >= least_refused * ran, f"only {said_no} of {ran} were refused"


def contents(folder: Path) -> dict[str, object]:
    """Everything below a folder: files byte for byte, links by where they lead."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        elif path.is_file():
            found[name] = path.read_bytes()
        else:
            found[name] = path.lstat().st_mode
    return found


def damaged_bytes(content: bytes, rng: random.Random, within: int | None = None) -> bytes:
    """Cut, flip, fill, double or replace some bytes; ``within`` the first so many."""
    end = min(len(content), within or len(content))
    place = rng.randrange(max(end, 1))
    way = rng.randrange(7)
    if way == 0:
        return content[:place]
    if way == 1:
        return content[:place] + rng.randbytes(rng.randint(1, 16)) + content[place:]
    if way == 2:
        length = rng.randint(1, 32)
        return content[:place] + rng.randbytes(length) + content[place + length :]
    if way == 3:
        return content[:place] + content[place + rng.randint(1, 64) :]
    if way == 4:
        return content + rng.randbytes(rng.randint(1, 64))
    if way == 5:
        return rng.randbytes(rng.randint(0, 200))
    changed = bytearray(content)
    for _ in range(rng.randint(1, 8)):
        if changed:
            changed[rng.randrange(end)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def parted(content: bytes) -> tuple[dict, bytes]:
    """Header and data of a safetensors file."""
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def joined(header: object, data: bytes) -> bytes:
    said = json.dumps(header).encode()
    return struct.pack("<Q", len(said)) + said + data


def damaged_safetensors(content: bytes, rng: random.Random) -> bytes:
    """Lie in a header: lengths, types, shapes, offsets, names, metadata; or damage bytes."""
    if rng.random() < 0.35:
        return damaged_bytes(content, rng, within=rng.choice((None, 600)))
    if rng.random() < 0.15:
        claims = (0, 1, len(content), 2**31, 2**40, 2**63, 2**64 - 1)
        return struct.pack("<Q", rng.choice(claims)) + content[8:]
    header, data = parted(content)
    names = [name for name in header if name != "__metadata__"]
    name = rng.choice(names)
    entry = dict(header[name])
    way = rng.randrange(10)
    if way == 0:
        entry["dtype"] = rng.choice(("F64", "I64", "U8", "BOOL", "F8_E4M3", "C64", "X", 3, None))
    elif way == 1:
        entry["shape"] = rng.choice(([], [0], [-1], [2**62, 4], [1.5], "x", [2**40], None))
    elif way == 2:
        entry["data_offsets"] = rng.choice(([0, 2**50], [8, 0], [-4, 4], [0], [], None, [0, 4]))
    elif way == 3:
        entry["data_offsets"] = header[rng.choice(names)]["data_offsets"]
    elif way == 4:
        del entry[rng.choice(sorted(entry))]
    elif way == 5:
        header["../../etc/passwd"] = header.pop(name)
        return joined(header, data)
    elif way == 6:
        header["__metadata__"] = damaged_value(header.get("__metadata__", {}), rng)
    elif way == 7 and header.get("__metadata__"):
        key = rng.choice(sorted(header["__metadata__"]))
        header["__metadata__"][key] = damaged_json(header["__metadata__"][key], rng).decode(
            errors="replace"
        )
    elif way == 8:
        shape = entry.get("shape", [])
        entry["shape"] = [*shape, 1] if rng.random() < 0.5 else list(reversed(shape))
    else:
        del header[name]
        first, last = entry["data_offsets"]
        if last != len(data):  # the file stays sound where the last tensor goes
            return joined(header, data)
        return joined(header, data[:first])
    header[name] = entry
    return joined(header, data)


ODD: tuple[object, ...] = (
    None, True, -1, 0, 7, 1e308, -1e-300, 10**30, 10**400, 2**63, "", "x", "../../x", "\x1b[31m",
    "\u202e", "NaN", [], {}, [[]], [1, 2, 3], {"a": {}}, float("nan"), float("inf"), "9" * 5000,
)  # fmt: skip


def damaged_value(value: object, rng: random.Random) -> object:
    """Change one place of a JSON value: another type, a missing or a foreign key, a nest."""
    places = list(_places(value))
    if not places or rng.random() < 0.05:
        return copy.deepcopy(rng.choice(ODD))
    holder, key = rng.choice(places)
    way = rng.randrange(5)
    if way == 0 and isinstance(holder, dict):
        del holder[key]
    elif way == 1 and isinstance(holder, dict):
        holder[f"{key}_"] = holder.pop(key)
    elif way == 2 and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[key]))
    elif way == 3:
        nest: object = 1
        for _ in range(rng.choice((3, 150, 300))):
            nest = [nest]
        holder[key] = nest
    else:
        holder[key] = copy.deepcopy(rng.choice(ODD))
    return value


def _places(value: object) -> Iterable[tuple]:
    """Every place of a JSON value as (container, key); a nest may be deeper than Python's stack."""
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        if isinstance(holder, dict | list):
            for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
                yield holder, key
                waiting.append(holder[key])


def damaged_json(text: str | bytes, rng: random.Random) -> bytes:
    """Change a JSON document as a value, or as bytes."""
    content = text.encode() if isinstance(text, str) else text
    if rng.random() < 0.2 or content[:1] not in (b"{", b"["):
        return damaged_bytes(content, rng)
    if rng.random() < 0.05:
        return rng.choice((b"\xef\xbb\xbf" + content, content.decode().encode("utf-16"), b"NaN"))
    value = json.loads(content)
    for _ in range(rng.choice((1, 1, 1, 3))):
        value = damaged_value(value, rng)
    return json.dumps(value).encode()
