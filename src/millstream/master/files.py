"""Files of a master on any filesystem that pyarrow opens by URI, with atomic creation where the filesystem has it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.fs as pafs

from ..errors import BuildConflict, InputError

# Bytes of a write: segment by segment the kernel would cache a file in pieces that are as small, and a read that finds
# its pages in one piece takes a tenth less.
WRITE = 1 << 20


class Store:
    """A directory on a filesystem; names are relative to it."""

    def __init__(self, path: str | Path) -> None:
        text = str(path)
        if "\0" in text:
            raise InputError(f"the path {text!r} has a NUL character in it")
        try:
            if "://" in text:
                self.fs, self.root = pafs.FileSystem.from_uri(text)
            else:
                self.fs, self.root = pafs.LocalFileSystem(), str(Path(text).absolute())
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"cannot open path {text!r}: {error}") from error
        self.local = isinstance(self.fs, pafs.LocalFileSystem)
        self.path = self.root if self.local else text

    def full(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def is_file(self, name: str = "") -> bool:
        return bool(self.fs.get_file_info(self.full(name)).type == pafs.FileType.File)

    def exists(self, name: str = "") -> bool:
        return self.fs.get_file_info(self.full(name)).type != pafs.FileType.NotFound

    def names(self, folder: str) -> list[str]:
        """Names of the files and folders in a folder, sorted; empty if it is not there."""
        selector = pafs.FileSelector(self.full(folder), allow_not_found=True)
        return sorted(info.base_name for info in self.fs.get_file_info(selector))

    def size(self, name: str) -> int:
        return int(self.fs.get_file_info(self.full(name)).size)

    def read(self, name: str) -> bytes:
        with self.fs.open_input_file(self.full(name)) as file:
            return bytes(file.read())

    def make_folder(self, name: str) -> None:
        self.fs.create_dir(self.full(name), recursive=True)

    def delete(self, name: str) -> None:
        """Remove a file or folder if it is there."""
        info = self.fs.get_file_info(self.full(name))
        with contextlib.suppress(FileNotFoundError):
            if info.type == pafs.FileType.Directory:
                self.fs.delete_dir(info.path)
            elif info.type == pafs.FileType.File:
                self.fs.delete_file(info.path)

    def open_output(self, name: str) -> pa.NativeFile:
        return self.fs.open_output_stream(self.full(name), buffer_size=WRITE)

    def sync(self, name: str) -> None:
        """Make a written file, or the names in a folder, durable (local filesystems)."""
        if self.local:
            descriptor = os.open(self.full(name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def create(self, name: str, content: bytes) -> bool:
        """Write a whole new file at once; False if it exists already.

        On a local filesystem this is atomic against a second writer. Elsewhere the file appears at once too, but two
        writers that come within the same instant may both succeed: let one process build a master there.
        """
        if self.local:
            temporary = f"{self.full(name)}.{uuid.uuid4().hex}.tmp"
            try:
                with open(temporary, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(temporary, self.full(name))
            except FileExistsError:
                return False
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
            self.sync(name.rpartition("/")[0])
            return True
        if self.exists(name):
            return False
        with self.open_output(name) as stream:
            stream.write(content)
        return True


class BuilderLock:
    """At most one builder of a local master at a time; the lock goes with the process that holds it."""

    def __init__(self, store: Store) -> None:
        self._descriptor: int | None = None
        if store.local:
            descriptor = os.open(store.full(".builder"), os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                raise BuildConflict(
                    f"another builder is writing the master at {store.path}; nothing was changed, try again later"
                ) from error
            self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> BuilderLock:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()
