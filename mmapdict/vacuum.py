"""Vacuum: the live records of a file, copied into a new one."""
from __future__ import annotations

from . import format as fmt
from .copying import Builder, stored_parts
from .errors import CorruptError
from .index import Index
from .store import File


def copy_live(index: Index, new: File) -> None:
    """Copy all that counts in the file of `index` into a new, empty file.

    Parameters
    ----------
    index : Index
        Of a file that nobody changes meanwhile, elements of arrays included.
    new : File
        Locked by the caller, who also sees to it that it is on the disk before it takes the place of the other.

    Raises
    ------
    CorruptError
        A value is damaged so that it cannot stand at another place. `repair` copies the others.
    OSError
        There is no room, or the disk fails.

    Notes
    -----
    The room of holes is taken in the new file too, unless the old one as a whole has fewer blocks than bytes.
    O(live bytes), and at least one pass over the opcodes of each pickled value.
    """
    file = index.file
    builder = Builder(new, file, file.is_sparse(index.end))
    for _, offset in index.snapshot():
        try:
            record, key, at, view, base = index.read_head(offset)
            builder.add(key, stored_parts(view, base, record, key, at, builder.memo))
        except CorruptError as exc:
            raise CorruptError(f"{exc.message}; repair copies what is whole", file.path,
                               offset if exc.offset is None else exc.offset) from exc
    builder.finish(file.cells[fmt.COMMIT_CELL] + 2)
