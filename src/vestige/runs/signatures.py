"""Detached signatures of a run's digests, made and checked by OpenSSH's ``ssh-keygen -Y``.

The signature is of ``digests.json``, with the namespace below, so that it cannot be taken for that
of an e-mail or a commit. Nothing cryptographic is written here.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from pathlib import Path

from vestige.errors import BadInput, NotFound, VestigeError, brief
from vestige.files import explain_errors, read_document, save
from vestige.printable import clean_text
from vestige.runs.paths import given_path
from vestige.runs.rederivation import Comparison
from vestige.studies.run_digests import DIGESTS, SIGNATURE, write_digests

NAMESPACE = "vestige-run"
_BEGIN = "-----BEGIN SSH SIGNATURE-----"
_MOST_BYTES = 2**16
_SECONDS = 600
"""A hardware key waits for a touch."""


def sign(folder: str | Path, key: str | Path) -> Path:
    """Sign a run that verifies with a private key, or the public one of a key in an agent.

    ``digests.json`` is written again first, with the page. Return the path of the signature.
    """
    from vestige.runs.verification import verify

    folder, key = given_path(folder, "The run folder"), given_path(key, "The key")
    program = _program()
    if not os.path.isfile(key):
        raise NotFound(f"{key} does not exist: give your ssh key, made by 'ssh-keygen -t ed25519'.")
    found = verify(folder)
    if not found.verified:
        raise BadInput(f"{folder} does not verify, so it was not signed: {found.differences[0]}")
    with explain_errors(folder):
        write_digests(folder, page=True)
        content = (folder / DIGESTS).read_bytes()
    done = _run([program, "-Y", "sign", "-q", "-n", NAMESPACE, "-f", str(key)], content)
    if done.returncode or not done.stdout.startswith(_BEGIN.encode()):
        raise VestigeError(f"ssh-keygen did not sign with {key} ({_reason(done)}): check the key.")
    save(folder / SIGNATURE, done.stdout)
    return folder / SIGNATURE


def check_signature(folder: str | Path, allowed_signers: str | Path, identity: str) -> Comparison:
    """Whether an allowed signer of this name signed the digests of a run (ssh-keygen(1))."""
    folder = given_path(folder, "The run folder")
    allowed = given_path(allowed_signers, "The file of allowed signers")
    program = _program()
    if not os.path.isfile(allowed):
        raise NotFound(f"{allowed} does not exist: give a file of allowed signers (ssh-keygen(1)).")
    sound = isinstance(identity, str) and identity and not identity.startswith("-")
    if not sound or any(c in identity for c in "*?!,\n\0"):
        raise BadInput(f"The identity is {brief(identity)}: give a name of the file of signers.")
    signature = folder / SIGNATURE
    if not signature.is_file() or signature.is_symlink():
        return Comparison(differences=[f"{SIGNATURE} is missing: the run is not signed."])
    try:
        content = (folder / DIGESTS).read_bytes()
    except OSError:
        return Comparison(differences=[f"{DIGESTS} is missing, which was signed."])
    files = ["-f", str(allowed), "-s", str(signature)]
    done = _run(
        [program, "-Y", "verify", "-q", "-n", NAMESPACE, "-I", identity, *files],
        content,
    )
    if done.returncode:
        reason = f" ({_reason(done)})" if _reason(done) else ""
        return Comparison(
            differences=[f"The signature is not one of {identity} on {DIGESTS} as it is{reason}."]
        )
    return Comparison(confirmed=[f"{identity} signed {DIGESTS}."])


def present_signature(folder: str | Path) -> Comparison:
    """Whether the signature beside the digests is one, and of the digests as they are.

    Who made it is not checked: that needs a file of allowed signers.
    """
    path = Path(folder) / SIGNATURE
    if not is_signature(path):
        return Comparison(
            differences=[f"{SIGNATURE} is no signature of a run: delete it, or sign the run again."]
        )
    who = "The signature was not checked: pass --allowed-signers and --identity of its signer."
    program = shutil.which("ssh-keygen")
    if program is None:
        return Comparison(open=[who])
    try:
        content = (Path(folder) / DIGESTS).read_bytes()
    except OSError:
        return Comparison(differences=[f"{DIGESTS} is missing, which was signed."])
    known = ["-Y", "check-novalidate", "-q", "-n", NAMESPACE, "-s", str(path)]
    if _run([program, *known], content).returncode:
        return Comparison(
            differences=[
                f"{SIGNATURE} is not of {DIGESTS} as it is: the run was continued or changed after "
                "it was signed, so sign it again."
            ]
        )
    return Comparison(open=[f"{who} It is one of {DIGESTS} as it is."])


def is_signature(path: Path) -> bool:
    """Whether a file has the form of a signature of a run (PROTOCOL.sshsig of OpenSSH)."""
    try:
        if path.is_symlink():
            return False
        lines = read_document(path, _MOST_BYTES).decode("ascii").strip().splitlines()
        if (lines[0], lines[-1]) != (_BEGIN, "-----END SSH SIGNATURE-----"):
            return False
        blob = base64.b64decode("".join(lines[1:-1]), validate=True)
        length = int.from_bytes(blob[10:14], "big")  # of the public key, after the version
        namespace = NAMESPACE.encode()
        named = blob[14 + length :][: 4 + len(namespace)]
        return blob[:10] == b"SSHSIG\0\0\0\1" and (
            named == len(namespace).to_bytes(4, "big") + namespace
        )
    except (OSError, ValueError, LookupError, VestigeError):
        return False


def _program() -> str:
    found = shutil.which("ssh-keygen")
    if found is None:
        raise NotFound("Signatures need ssh-keygen, which is not here: install OpenSSH.")
    return found


def _run(command: list[str], content: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            command, input=content, capture_output=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise VestigeError(f"ssh-keygen did not end ({error}): run the command again.") from error


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return clean_text(lines[-1][:160].rstrip(".")) if lines else ""
