"""What a caller gets wrong is one sentence, never a traceback of Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pages.states import STATES
from run_worlds import run_folder
from vestige.cli.app import main
from vestige.errors import BadInput, VestigeError
from vestige.runs.csv_tables import write_tables
from vestige.runs.differences import compare_runs
from vestige.runs.hand_over import write_redacted
from vestige.runs.index_page import write_index
from vestige.runs.signatures import check_signature, sign
from vestige.runs.verification import verify

LONG = "x" * 300
"""No file system holds a name of so many bytes."""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return run_folder("audit", tmp_path_factory.mktemp("bad") / "run")


def server(folder: Any, port: Any = 0) -> object:
    pytest.importorskip("uvicorn", reason="the extra view is not installed")
    from vestige.runs.server import RunServer

    return RunServer(folder, port)


CALLS: dict[str, Callable[[Path], object]] = {
    "verify": lambda place: verify(None),  # pyright: ignore[reportArgumentType]
    "plan": lambda place: verify(place, plan=3),
    "class as plan": lambda place: verify(place, plan=Path),
    "sign": lambda place: sign(3, "key"),  # pyright: ignore[reportArgumentType]
    "key": lambda place: sign(place, 3),  # pyright: ignore[reportArgumentType]
    "signers": lambda place: check_signature(place, 3, "me"),  # pyright: ignore[reportArgumentType]
    "identity": lambda place: check_signature(place, __file__, 3),  # pyright: ignore[reportArgumentType]
    "tables": lambda place: write_tables(3, place),  # pyright: ignore[reportArgumentType]
    "folder of tables": lambda place: write_tables(STATES["demonstrated"](), 3),  # pyright: ignore[reportArgumentType]
    "hand over": lambda place: write_redacted(3, place / "new"),  # pyright: ignore[reportArgumentType]
    "folder to hand over": lambda place: write_redacted(STATES["demonstrated"](), 3),  # pyright: ignore[reportArgumentType]
    "index": lambda place: write_index(3),  # pyright: ignore[reportArgumentType]
    "page of the index": lambda place: write_index(place, 3),  # pyright: ignore[reportArgumentType]
    "server": lambda place: server(3),
    "port": lambda place: server(place, "x"),
    "negative port": lambda place: server(place, -1),
    "difference": lambda place: compare_runs(3, place),  # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_with_bad_input_is_one_sentence(place, name):
    with pytest.raises(BadInput) as refused:
        CALLS[name](place)
    assert "\n" not in str(refused.value)


COMMANDS: dict[str, tuple[str, ...]] = {
    "verify": ("verify", LONG),
    "key": ("sign", "RUN", "--key", LONG),
    "signers": ("verify", "RUN", "--allowed-signers", LONG, "--identity", "me"),
    "index": ("index", LONG),
    "page of the index": ("index", "RUN", "--out", LONG),
    "view": ("view", LONG),
    "diff": ("diff", "RUN", LONG),
    "same": ("diff", "RUN", "RUN"),
    "tables": ("export", "RUN", "--csv", LONG),
    "hand over": ("export", "RUN", "--redacted", LONG),
    "hand over to a file": ("export", "RUN", "--redacted", __file__),
    "annex": ("annex", LONG),
    "annex elsewhere": ("annex", "RUN", "--out", LONG),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_with_bad_input_is_one_sentence(place, name, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = [str(place) if one == "RUN" else one for one in COMMANDS[name]]
    monkeypatch.setattr(sys, "argv", ["vestige", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr()
    assert stopped.value.code == 2
    assert (said.err.count("\n"), said.err.startswith("vestige: ")) == (1, True)


def test_a_file_is_no_folder_to_hand_over(place):
    with pytest.raises(VestigeError, match="is a file: name a new folder"):
        write_redacted(STATES["demonstrated"](), __file__)
