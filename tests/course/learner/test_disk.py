"""Reading what may be anything by now, and the advice that fits what the system refuses."""

import errno
import os

import pytest

from amp_lab.course.learner import disk


def test_a_file(tmp_path):
    (tmp_path / "page").write_bytes(b"mine")
    (tmp_path / "link").symlink_to(tmp_path / "page")
    assert disk.read(tmp_path / "page") == disk.read(tmp_path / "link") == b"mine"


@pytest.mark.parametrize(
    ("make", "advice"), [(os.mkfifo, "no ordinary file"), (os.mkdir, "rename the folder")]
)
def test_what_is_no_file_is_refused_at_once(tmp_path, make, advice):
    make(tmp_path / "page")
    with pytest.raises(OSError, match=r"not an ordinary file|Is a directory") as caught:
        disk.read(tmp_path / "page")
    assert advice in disk.in_words(caught.value).advice


def test_permission_advice_names_what_is_locked(tmp_path, monkeypatch):
    (tmp_path / "page").touch()
    refused = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "page"))
    assert disk.in_words(refused).advice.endswith(f"(chmod u+rw {tmp_path / 'page'})")
    new = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "new"))
    assert disk.in_words(new).advice.startswith("make the folder writable")
    two = PermissionError(
        errno.EACCES, "Permission denied", str(tmp_path / "page"), None, str(tmp_path / "new")
    )
    assert disk.in_words(two).advice.startswith("make the folder writable")
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    assert disk.in_words(refused).advice.endswith(f"(chmod u+rwx {tmp_path})")


def test_in_words():
    assert str(disk.in_words(OSError(errno.EIO, "Input/output error"))) == "Input/output error"
    full = OSError(errno.ENOSPC, "No space left on device", "/a")
    assert str(disk.in_words(full)) == "/a: No space left on device; free some space and try again"
