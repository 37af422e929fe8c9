"""What is saved comes back in every bit, or an error says what is wrong with the file."""

import errno
import json
import os
import pickle
import random
import resource
import stat
import struct
import warnings
import zipfile
import zlib
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from amp_lab.train.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from amp_lab.train.saving import layout, one

DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.uint16,
        torch.bool,
        torch.complex64,
    ),
]


def small_state():
    return {"model": OrderedDict(weight=torch.arange(6.0).reshape(2, 3)), "step": 3, "name": "a"}


@pytest.fixture
def saved(tmp_path):
    return save_checkpoint(tmp_path / "run.pt", small_state())


def problem(path):
    """Return the error of a file that cannot be loaded."""
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    assert str(path) in str(caught.value)
    assert caught.value.path == str(path)
    return caught.value


# What comes back


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_dtype_come_back_in_every_bit(tmp_path, dtype):
    bits = (
        torch.randint(0, 2, (48,), dtype=torch.uint8) if dtype is torch.bool else torch.arange(48) * 5 % 256
    )
    tensor = bits.to(torch.uint8).view(dtype)
    back = load_checkpoint(save_checkpoint(tmp_path / "a.pt", [tensor]))[0]
    assert back.dtype is dtype
    assert back.view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist()


def test_values_come_back_as_they_were(tmp_path):
    state = {
        "numbers": [1, -(2**70), (1 << 2039) - 1, 1.5, float("inf"), 2 + 1j, True, None],
        "text": ["", "ä\n", b"\x00\xff"],
        "nested": {0: (1, (2, [3])), "empty": [{}, [], ()]},
        "torch": [torch.float16, torch.device("cuda:1"), torch.Size([2, 3])],
        "counts": Counter(a=2),
        "ordered": OrderedDict(b=1, a=2),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(2.5),
    }
    back = load_checkpoint(save_checkpoint(tmp_path / "a.pt", state))
    tensors = {"empty", "scalar"}
    assert {key: one for key, one in back.items() if key not in tensors} == {
        key: one for key, one in state.items() if key not in tensors
    }
    assert type(back["ordered"]) is OrderedDict
    assert back["empty"].shape == (0, 3)
    assert back["scalar"].item() == 2.5


def test_numbers_of_numpy_become_those_of_python(tmp_path):
    back = load_checkpoint(save_checkpoint(tmp_path / "a.pt", [np.float64(0.5), np.int32(3), np.bool_(True)]))
    assert back == [0.5, 3, True]
    assert [type(one) for one in back] == [float, int, bool]


def test_a_view_is_saved_without_what_it_does_not_show(tmp_path):
    table = torch.arange(1_000_000.0)
    path = save_checkpoint(
        tmp_path / "a.pt", [table[10:13], table[:3].expand(2, 3), table[:4].reshape(2, 2).t()]
    )
    assert path.stat().st_size < 10_000
    rows, expanded, turned = load_checkpoint(path)
    assert rows.tolist() == [10, 11, 12]
    assert expanded.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert turned.tolist() == [[0, 2], [1, 3]]


def test_tied_weights_are_saved_once(tmp_path):
    weight = nn.Parameter(torch.zeros(100_000))
    path = save_checkpoint(tmp_path / "a.pt", {"in": weight, "out": weight})
    assert path.stat().st_size < 410_000
    back = load_checkpoint(path)
    assert back["in"].data_ptr() == back["out"].data_ptr()


def test_the_versions_of_a_models_modules_are_kept(tmp_path):
    state = nn.BatchNorm1d(2).state_dict()
    assert load_checkpoint(save_checkpoint(tmp_path / "a.pt", state))._metadata == state._metadata


def test_plain_torch_opens_it_too(saved):
    loaded = torch.load(saved, weights_only=True)
    assert loaded["AMP Lab checkpoint"] == 1
    assert loaded["state"]["model"]["weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert zipfile.ZipFile(saved).testzip() is None


def test_tensors_go_where_map_location_says(saved):
    assert load_checkpoint(saved, map_location="meta")["model"]["weight"].device.type == "meta"
    assert load_checkpoint(saved)["model"]["weight"].device.type == "cpu"


def test_a_folder_is_made_and_a_file_replaced(tmp_path):
    path = tmp_path / "new" / "folder" / "run.pt"
    assert save_checkpoint(path, 1) == path
    save_checkpoint(str(path), 2)
    assert load_checkpoint(str(path)) == 2
    assert os.listdir(path.parent) == ["run.pt"]


def test_others_may_read_it_as_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        assert save_checkpoint(tmp_path / "a.pt", 1).stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)


# What cannot be saved


class Odd:
    pass


ITSELF: list = []
ITSELF.append(ITSELF)


def nested():
    """PyTorch warns that these may change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])


REFUSED = {
    "module": (
        {"m": nn.Linear(1, 1)},
        r"state['m'] is a torch.nn.modules.linear.Linear: save its .state_dict()",
    ),
    "optimizer": (
        [torch.optim.SGD([torch.zeros(1)])],
        "state[0] is a torch.optim.sgd.SGD: save its .state_dict()",
    ),
    "function": ({"a": {"f": len}}, "state['a']['f'] is a builtin_function_or_method: leave it out"),
    "array": ({"a": np.zeros(3)}, "state['a'] is a numpy.ndarray: save torch.from_numpy(array)"),
    "set": ({"a": {1}}, "state['a'] is a set: save list(value)"),
    "object": (
        [Odd()],
        "state[0] is a test_checkpoint.Odd: save list(value), dict(value) or the numbers in it",
    ),
    "sparse": ([torch.eye(2).to_sparse()], "state[0] is a torch.Tensor: save an ordinary tensor"),
    "meta": ([torch.zeros(2, device="meta")], "state[0] is a torch.Tensor: save an ordinary tensor"),
    "nested": ([nested()], "state[0] is a torch.Tensor: save an ordinary tensor"),
    "lazy": (nn.LazyLinear(1).state_dict(), "whose size is not known yet. Run the model once first"),
    "huge": ([1 << 2039], "state[0] is a int: save int(value), float(value) or str(value)"),
    "date": (
        [np.datetime64("2020-01-01")],
        "state[0] is a numpy.datetime64: save int(value), float(value) or",
    ),
    "key": ({"a": {(1, 2): 3}}, "a key of state['a'] is a tuple"),
    "itself": (ITSELF, "state holds itself"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_not_be_loaded_is_not_saved(tmp_path, name):
    state, message = REFUSED[name]
    path = save_checkpoint(tmp_path / "a.pt", "before")
    with pytest.raises(CheckpointError) as caught:
        save_checkpoint(path, state)
    assert message.replace("test_checkpoint", __name__) in str(caught.value)
    assert caught.value.kind == "unsaved"
    assert load_checkpoint(path) == "before"


def not_saved(path, state="after"):
    """Return the error of a save that fails; the file is as before, and nothing else is left."""
    with pytest.raises(CheckpointError) as caught:
        save_checkpoint(path, state)
    assert caught.value.kind == "unsaved"
    assert str(path) in str(caught.value)
    assert load_checkpoint(path) == "before"
    assert os.listdir(path.parent) == [path.name]
    return str(caught.value)


@pytest.mark.parametrize("limit", [0, 100, 3_000, 200_000, 400_500])
def test_a_file_that_may_not_grow(tmp_path, limit):
    """The system itself stops the writing, at every stage of it."""
    path = save_checkpoint(tmp_path / "a.pt", "before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(CheckpointError) as caught:
            save_checkpoint(path, torch.zeros(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "not saved: File too large. No file of this size is allowed here" in str(caught.value)
    assert load_checkpoint(path) == "before"
    assert os.listdir(tmp_path) == ["a.pt"]


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk(tmp_path, monkeypatch, call):
    path = save_checkpoint(tmp_path / "a.pt", "before")

    def full(*_):
        raise FULL

    monkeypatch.setattr(os, call, full)
    message = not_saved(path)
    assert "not saved: No space left on device. Free some space, or give another folder" in message
    assert "Older checkpoints are as they were" in message


@pytest.mark.parametrize("failed", [FULL, KeyboardInterrupt()], ids=["full", "interrupted"])
@pytest.mark.parametrize("at", [1, 5, 12])
def test_a_write_that_fails_inside_torch_save(tmp_path, monkeypatch, failed, at):
    path = save_checkpoint(tmp_path / "a.pt", "before")
    calls = iter(range(1, 1000))

    def crc32(*arguments):
        if next(calls) == at:
            raise failed
        return zlib.crc32(*arguments)

    monkeypatch.setattr(layout.zlib, "crc32", crc32)
    with pytest.raises(CheckpointError if failed is FULL else KeyboardInterrupt):
        save_checkpoint(path, {"a": torch.zeros(3)})
    monkeypatch.undo()
    assert load_checkpoint(path) == "before"
    assert os.listdir(tmp_path) == ["a.pt"]


def test_the_bytes_are_on_the_disk_before_the_name_and_the_name_before_it_returns(tmp_path, monkeypatch):
    done, fsync, replace = [], os.fsync, os.replace

    def synced(descriptor):
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def renamed(*names):
        done.append("rename")
        replace(*names)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    save_checkpoint(tmp_path / "a.pt", 1)
    assert done == ["file", "rename", "folder"]


def test_a_file_system_without_fsync_of_folders(tmp_path, monkeypatch):
    fsync = os.fsync

    def files_only(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", files_only)
    assert load_checkpoint(save_checkpoint(tmp_path / "a.pt", 1)) == 1


def test_a_folder_with_the_name_of_the_file(tmp_path):
    (tmp_path / "run.pt").mkdir()
    with pytest.raises(
        CheckpointError, match=r"run\.pt: not saved: .*irectory\. A folder has the name of the file"
    ):
        save_checkpoint(tmp_path / "run.pt", 1)


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_no_name(path):
    with pytest.raises(
        CheckpointError, match=r"not saved: Is a directory\. A folder has the name of the file"
    ):
        save_checkpoint(path, 1)


def test_what_is_no_file_is_not_replaced(tmp_path):
    """As root, /dev/full would become a file."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match="a device, a pipe or a socket has this name"):
        save_checkpoint(path, {})
    assert path.is_fifo()
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_with_the_name_of_the_folder(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(CheckpointError, match=r"not saved: .*A file has the name of "):
        save_checkpoint(tmp_path / "runs" / "run.pt", 1)


def test_leftovers_of_killed_runs_go_and_nothing_else(tmp_path):
    mine = tmp_path / ".run.pt.0123456789ab.amp-lab-tmp"
    others = [
        tmp_path / name for name in (".other.pt.0123456789ab.amp-lab-tmp", ".run.pt.tmp", "run.amp-lab-tmp")
    ]
    for path in (mine, *others):
        path.write_bytes(b"half")
    save_checkpoint(tmp_path / "run.pt", 1)
    assert not mine.exists()
    assert all(path.exists() for path in others)


def test_a_file_that_is_being_written_is_no_leftover(tmp_path):
    import fcntl

    busy = tmp_path / ".run.pt.0123456789ab.amp-lab-tmp"
    with open(busy, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        save_checkpoint(tmp_path / "run.pt", 1)
        assert busy.exists()


# What cannot be loaded


def test_cut_off_at_every_length(saved):
    whole = saved.read_bytes()
    kinds = Counter()
    last_line = whole.rindex(b"\nAMP Lab")
    # Each length at the end, where the last line stands; some of each kind elsewhere.
    for length in (*range(0, last_line, 23), *range(last_line, len(whole))):
        saved.write_bytes(whole[:length])
        error = problem(saved)
        kinds[error.kind] += 1
        if length > 200:  # the name that tells whose file it is stands before
            assert error.kind == "truncated", length
            assert f"cut off after {length:,} bytes. Copy it again, or go back to an older" in str(error)
    assert kinds["truncated"] > 100


def test_each_flipped_bit_is_seen(saved):
    whole = saved.read_bytes()
    kinds = Counter()
    last_line = whole.rindex(b"\nAMP Lab")
    places = [*range(0, last_line, 19), *range(last_line, len(whole))]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << random.Random(place).randrange(8)
        saved.write_bytes(damaged)
        kinds[problem(saved).kind] += 1
    assert kinds["damaged"] > len(places) - 50
    assert set(kinds) <= {"damaged", "truncated", "foreign"}


def test_more_at_the_end(saved):
    saved.write_bytes(saved.read_bytes() + b"more")
    assert problem(saved).kind == "truncated"


def test_a_part_in_the_middle_missing(saved):
    whole = saved.read_bytes()
    saved.write_bytes(whole[:500] + whole[564:])
    assert problem(saved).kind == "damaged"


def foreign_files(path):
    yield "text", lambda: path.write_text("epoch,loss\n1,0.5\n"), "foreign: not written by save_checkpoint"
    yield "zip", lambda: zipfile.ZipFile(path, "w").writestr("a", "b"), "foreign: a file of plain torch.save"
    yield "torch", lambda: torch.save({"a": torch.zeros(3)}, path), "foreign: a file of plain torch.save"
    yield (
        "module",
        lambda: torch.save(nn.Linear(1, 1), path),
        "torch.load(path, weights_only=True) may read it",
    )
    yield "pickle", lambda: path.write_bytes(pickle.dumps([1])), "foreign: not written by save_checkpoint"
    tensors = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    yield (
        "safetensors",
        lambda: path.write_bytes(struct.pack("<Q", len(tensors)) + tensors + b"\0" * 4),
        "not written by save_checkpoint",
    )
    yield "zeros", lambda: path.write_bytes(bytes(100_000)), "foreign: not written by save_checkpoint"


def test_files_of_others(tmp_path):
    path = tmp_path / "a.pt"
    for name, write, message in foreign_files(path):
        write()
        error = problem(path)
        assert error.kind == "foreign", name
        assert message in str(error), name


def test_an_empty_file(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"")
    error = problem(tmp_path / "a.pt")
    assert error.kind == "truncated"
    assert "it is empty" in str(error)


def test_a_folder(tmp_path):
    error = problem(tmp_path)
    assert error.kind == "unreadable"
    assert "this is a folder. Give a file in it, or use Checkpoints(folder).load()" in str(error)


def test_a_named_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.pt")
    assert problem(tmp_path / "a.pt").kind == "unreadable"


def test_a_missing_file(saved):
    error = problem(saved.with_name("rnu.pt"))
    assert error.kind == "missing"
    assert "there is no such file. Its folder holds run.pt" in str(error)
    assert "there is no folder" in str(problem(saved.parent / "b" / "run.pt"))


def test_a_file_that_may_not_be_read(saved, monkeypatch):
    """Not by chmod: root may read everything."""

    def refused(path, *_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(one.os, "open", refused)
    error = problem(saved)
    assert error.kind == "unreadable"
    assert "you may not read it. Make it readable for you (chmod u+r)" in str(error)


# What somebody made on purpose


def finished(payload, version=1, about=None):
    """Return a file's bytes with a right last line: whoever makes a hostile file can count, too."""
    line = f"\nAMP Lab checkpoint {version} {json.dumps(about or {'bytes': len(payload)})}".encode()
    return payload + line + f" CRC32 {zlib.crc32(payload + line):08x}\n".encode()


def payload(saved):
    whole = saved.read_bytes()
    return whole[: whole.rindex(b"\nAMP Lab")]


def repacked(saved, change, compression=zipfile.ZIP_STORED):
    """Write the file again with other records: `change` is given them and changes them."""
    with zipfile.ZipFile(saved) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    change(records)
    with zipfile.ZipFile(saved, "w", compression) as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    saved.write_bytes(finished(saved.read_bytes()))
    return saved


def with_pickle(saved, data):
    return repacked(saved, lambda records: records.update({"archive/data.pkl": data}))


def test_the_maker_of_these_files_makes_good_ones(saved):
    assert load_checkpoint(repacked(saved, lambda records: None))["step"] == 3


def test_a_newer_version(saved):
    saved.write_bytes(finished(payload(saved), version=2))
    error = problem(saved)
    assert error.kind == "newer"
    assert "written by a newer amp_lab (layout 2; this one reads up to 1). Update amp_lab" in str(error)


class Runs:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def unsafe(path):
    error = problem(path)
    assert error.kind == "unsafe"
    assert "None of its code has run. save_checkpoint writes no such file" in str(error)
    assert "=False" not in str(error), "PyTorch's advice to run the code all the same"
    return str(error)


def test_code_in_the_file_does_not_run(saved, tmp_path):
    ran = tmp_path / "ran"
    for call in (Runs(os.mkdir, str(ran)), Runs(eval, f"__import__('os').mkdir({str(ran)!r})")):
        message = unsafe(with_pickle(saved, pickle.dumps({"state": call}, 2)))
        assert "GLOBAL posix.mkdir" in message or "GLOBAL eval" in message
    assert not ran.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x02}",
        b"\x80\x02N0",
        b"\x80\x02" + b"(" * 100_000,
        b"\x80\x02jxxxx.",
        b"\x80\x05\x96\0\0\0\0\x10\0\0\0.",
        b"\x80\x02]K\x00K\x01s.",  # an item set in a list that is none of it
        random.Random(0).randbytes(999),
    ],
    ids=range(8),
)
def test_a_pickle_that_breaks_its_reader(saved, data):
    unsafe(with_pickle(saved, data))


def test_more_memory_than_there_is(saved):
    error = problem(with_pickle(saved, pickle.dumps({"state": Runs(bytearray, 2**62)}, 2)))
    assert error.kind == "unreadable"
    assert "cannot load it onto 'cpu': MemoryError" in str(error)


def test_a_last_line_that_breaks_its_reader(saved):
    for about in ("{" + "[" * 30_000 + "}", '{"a": ' + "[" * 30_000 + "}", "{1}"):
        line = f"\nAMP Lab checkpoint 1 {about}".encode()
        whole = payload(save_checkpoint(saved, 1)) + line
        saved.write_bytes(whole + f" CRC32 {zlib.crc32(whole):08x}\n".encode())
        assert "its last line cannot be read" in str(problem(saved))


def test_a_device_that_is_not_here(saved):
    with pytest.raises(
        CheckpointError,
        match=r"run\.pt: unreadable: PyTorch .* cannot load it onto 'hpu'.*map_location='cpu'",
    ):
        load_checkpoint(saved, map_location="hpu")


def test_deep_nesting_ends_in_an_error(saved):
    data = b"\x80\x02" + b"]" * 3_000 + b"a" * 2_999 + b"."
    assert problem(with_pickle(saved, data)).kind == "foreign"  # lists in lists, and no state


believes_sizes = pytest.mark.skipif(
    torch.__version__.split("+")[0] in ("2.9.0", "2.9.1"),
    reason="PyTorch 2.9 believes what a file says of its sizes (CVE-2026-24747, mended in 2.10)",
)


@believes_sizes
def test_a_zip_bomb(saved):
    """A record of another size than the tensor in it is not unpacked into it."""

    def blow_up(records):
        records["archive/data/0"] = bytes(10_000_000)

    path = repacked(saved, blow_up, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 100_000
    assert problem(path).kind == "unreadable"


@believes_sizes
def test_a_tensor_that_claims_more_than_its_bytes(saved):
    def claim(records):
        data = records["archive/data.pkl"]
        assert data.count(b"K\x06t") == 1  # the six elements of the storage
        records["archive/data.pkl"] = data.replace(b"K\x06t", b"\x8a\x05\0\0\0\0\x10t")

    assert problem(repacked(saved, claim)).kind == "unreadable"


def test_a_whole_module_with_a_right_last_line(saved):
    torch.save({"state": nn.Linear(1, 1)}, saved)
    saved.write_bytes(finished(saved.read_bytes()))
    assert "torch.nn.modules.linear.Linear" in unsafe(saved)


def test_no_state_in_it(saved):
    torch.save({"weights": torch.zeros(1)}, saved)
    saved.write_bytes(finished(saved.read_bytes()))
    assert problem(saved).kind == "foreign"
