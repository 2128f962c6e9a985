"""Signatures by ssh-keygen with a throw-away key: made, checked, and refused when stale."""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from run_worlds import run_folder
from vestige import load_report, save_page
from vestige.cli.app import main
from vestige.errors import BadInput, NotFound, VestigeError
from vestige.runs.signatures import check_signature, present_signature, sign
from vestige.runs.verification import verify
from vestige.studies.run_digests import read_digests, write_digests

pytestmark = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed"
)


def make_key(folder: Path, name: str) -> Path:
    key = folder / name
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(key)]
    subprocess.run(command, check=True)
    return key


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("keys")
    found = {name: make_key(folder, name) for name in ("mine", "other")}
    public = Path(f"{found['mine']}.pub").read_text()
    (folder / "allowed").write_text(f"auditor@example.org {public}")
    return {**found, "allowed": folder / "allowed"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return run_folder("audit", tmp_path_factory.mktemp("signed") / "run")


@pytest.fixture
def place(tmp_path, finished) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def differences(place: Path, keys: dict[str, Path], name: str = "auditor@example.org") -> list[str]:
    return check_signature(place, keys["allowed"], name).differences


def test_a_signature_is_of_everything_that_counts(place, keys):
    signature = sign(place, keys["mine"])
    assert verify(place).verified
    assert differences(place, keys) == []
    assert {"report.json", "page.html", "manifest.json"} <= set(read_digests(place))
    # The signature itself is ssh-keygen's, as its own check says.
    done = subprocess.run(
        ["ssh-keygen", "-Y", "check-novalidate", "-n", "vestige-run", "-s", str(signature)],
        input=(place / "digests.json").read_bytes(),
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_change_with_new_digests_is_not_signed(place, keys):
    sign(place, keys["mine"])
    save_page(load_report(place), place / "page.html", redact=True)
    assert "page.html was changed" in " ".join(verify(place).differences)
    write_digests(place, page=True)
    assert verify(place).verified  # the digests agree again, and only the signature says no
    assert "not one of auditor@example.org" in differences(place, keys)[0]


def test_other_keys_names_and_namespaces_are_refused(place, keys):
    sign(place, keys["other"])
    assert differences(place, keys)
    sign(place, keys["mine"])
    assert differences(place, keys, "somebody@example.org")
    command = ["ssh-keygen", "-Y", "sign", "-q", "-n", "file", "-f", str(keys["mine"])]
    (place / "digests.json.sig").unlink()
    subprocess.run([*command, str(place / "digests.json")], check=True, capture_output=True)
    assert differences(place, keys)


def test_a_missing_signature_is_a_difference(place, keys):
    assert differences(place, keys) == ["digests.json.sig is missing: the run is not signed."]


def test_what_is_refused(place, keys, tmp_path):
    with pytest.raises(NotFound, match="give your ssh key"):
        sign(place, tmp_path / "none")
    (tmp_path / "text").write_text("no key")
    with pytest.raises(VestigeError, match="ssh-keygen did not sign"):
        sign(place, tmp_path / "text")
    with pytest.raises(NotFound, match="allowed signers"):
        check_signature(place, tmp_path / "none", "me")
    for name in ("", "-I", "*", "a,b"):
        with pytest.raises(BadInput, match="identity"):
            check_signature(place, keys["allowed"], name)
    (place / "notes.txt").write_text("more")
    with pytest.raises(BadInput, match="does not verify, so it was not signed"):
        sign(place, keys["mine"])


def spoiled(signature: bytes) -> list[bytes]:
    """What is no signature of a run: nothing, text, another armour, another magic, a cut one."""
    head, *body, end = signature.decode().strip().splitlines()
    blob = base64.b64decode("".join(body))
    armour = lambda content: "\n".join([head, base64.b64encode(content).decode(), end]).encode()  # noqa: E731
    assert armour(blob).replace(b"\n", b"") == signature.replace(b"\n", b"")
    return [
        *(b"", b"garbage", b"\xff\xfe", signature[: len(signature) // 2], b"\n" * 100_000),
        *(signature.replace(b"SSH SIG", b"PGP SIG"), f"{head}\n{end}\n".encode()),
        *(armour(b"SSHSIX" + blob[6:]), armour(blob[:12]), armour(b"")),
        armour(blob.replace(b"vestige-run", b"another-run")),
    ]


def test_what_is_no_signature_is_a_difference(place, keys, monkeypatch):
    content = sign(place, keys["mine"]).read_bytes()
    assert present_signature(place).differences == []
    for one in spoiled(content):
        (place / "digests.json.sig").write_bytes(one)
        assert "is no signature of a run" in present_signature(place).differences[0], one[:40]
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert present_signature(place).differences  # its form is read without ssh-keygen too
    (place / "digests.json.sig").write_bytes(content)
    assert present_signature(place).differences == []
    assert "was not checked" in present_signature(place).open[0]


def test_a_changed_signature_is_not_of_the_digests(place, keys):
    path = sign(place, keys["mine"])
    head, *body, end = path.read_text().strip().splitlines()
    blob = bytearray(base64.b64decode("".join(body)))
    blob[-3] ^= 1
    path.write_text("\n".join([head, base64.b64encode(blob).decode(), end]) + "\n")
    assert "is not of digests.json as it is" in present_signature(place).differences[0]


def test_added_trials_leave_a_stale_annex_and_signature(tmp_path, keys, monkeypatch, capsys):
    plan = tmp_path / "plan.py"
    plan.write_text("from run_worlds import audit as made\naudit = made(2)\n")
    folder, checked = tmp_path / "run", ["--identity", "auditor@example.org"]
    checked += ["--allowed-signers", str(keys["allowed"])]

    def command(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["vestige", *words])
        with pytest.raises(SystemExit) as stopped:
            main()
        said = capsys.readouterr()
        return int(stopped.value.code or 0), said.out + said.err

    arguments = ["run", str(plan), "--out", str(folder)]
    code, said = command(*arguments)
    assert code == 0
    assert "Remark: annex" not in said
    assert command("annex", str(folder))[0] == 0
    assert command("sign", str(folder), "--key", str(keys["mine"]))[0] == 0
    assert command("verify", str(folder), *checked)[0] == 0
    code, said = command(*arguments, "--trials", "4")
    assert code == 0
    for name in ("annex.md", "annex.json"):
        assert f"Remark: {name} is not what report.json gives: it is of another report" in said
    stale = "digests.json.sig is not of digests.json as it is"
    assert f"Remark: {stale}" in said
    code, said = command("verify", str(folder))
    assert code == 4
    assert "differs: annex.md is not what report.json gives: it is of another report" in said
    assert f"differs: {stale}" in said
    code, said = command("annex", str(folder))
    assert "Replaced: annex.md and annex.json of another report." in said
    assert f"Remark: {stale}" in said
    text = (folder / "annex.md").read_text()
    assert "2 planned, 2 added" in text
    assert "the audit was planned with 2 and has 4 now" in text
    page = (folder / "page.html").read_text()
    assert "trials (2 planned, 2 added)" in page
    assert "4 planned" not in page
    assert command("sign", str(folder), "--key", str(keys["mine"]))[0] == 0
    code, said = command("verify", str(folder), *checked)
    assert (code, "VERIFIED" in said) == (0, True)
    assert "Replaced" not in command("annex", str(folder))[1]


def test_the_commands(place, keys, monkeypatch, capsys):
    def command(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["vestige", *words])
        with pytest.raises(SystemExit) as stopped:
            main()
        return int(stopped.value.code or 0)

    checked = ["--allowed-signers", str(keys["allowed"]), "--identity", "auditor@example.org"]
    assert command("verify", str(place), *checked) == 4
    assert command("sign", str(place), "--key", str(keys["mine"])) == 0
    capsys.readouterr()
    assert command("verify", str(place)) == 0
    assert "The signature was not checked" in capsys.readouterr().out
    content = (place / "digests.json.sig").read_bytes()
    (place / "digests.json.sig").write_bytes(b"garbage")
    assert command("verify", str(place)) == 4
    assert "differs: digests.json.sig is no signature of a run" in capsys.readouterr().out
    (place / "digests.json.sig").write_bytes(content)
    assert command("verify", str(place), *checked) == 0
    assert "auditor@example.org signed digests.json." in capsys.readouterr().out
