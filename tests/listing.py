"""Text of a file: its `pickletools.dis` listing, and its bytes beside that listing.

    python tests/listing.py FILE        prints the bytes beside the listing, as in docs/format.md

It shares no code with mmapdict.
"""

import io
import pathlib
import pickletools
import struct
import sys

LINE_MAX = 100
ROW = 12  # bytes in a row

HEADER_NOTES = {7: "zero", 8: "magic", 16: "version", 24: "file id", 40: "commit", 48: "stop", 56: "live", 64: "dead",
                72: "memo", 80: "index", 88: "state", 96: "boot id", 112: "synced", 120: "reserved"}
CHECK_NOTES = ((0, "tag"), (8, "crc"), (12, "span"), (14, "zeros"))


def dis(data):
    """The lines of `pickletools.dis`, long ones cut, without its last line.

    Parameters
    ----------
    data : bytes
        A whole pickle; what stands behind STOP is not looked at.

    Returns
    -------
    list of str
        ASCII; one line for each opcode.
    """
    out = io.StringIO()
    pickletools.dis(data, out)
    lines = out.getvalue().encode("ascii", "backslashreplace").decode("ascii").splitlines()
    assert lines[-1].startswith("highest protocol among opcodes")
    return [line if len(line) <= LINE_MAX else line[:LINE_MAX - 4] + " ..." for line in lines[:-1]]


def walk(data):
    """The records of a file, by their lengths alone.

    Parameters
    ----------
    data : bytes

    Returns
    -------
    records : list of (int, int, int)
        Offset, Op and end of each.
    stop : int
        Offset of the STOP.
    """
    records, at = [], 256
    while data[at] != 0x2e:
        mark, op, length = struct.unpack_from("<BBQ", data, at)
        end = at + 10 + length + 1
        assert mark == 0x28 and op in (0x47, 0x8e) and data[end - 1] == 0x31, at
        records.append((at, op, end))
        at = end
    return records, at


def beside(data):
    """The bytes of a file beside its listing: offset, bytes in hexadecimal, opcode or a note.

    Parameters
    ----------
    data : bytes

    Returns
    -------
    list of str
    """
    notes = dict(HEADER_NOTES)
    records, stop = walk(data)
    for offset, op, _ in records:
        body = offset + 10
        if op == 0x47:
            check = body + (4 if data[body:body + 2] == b"h\x00" else 2)
            padding = data[check - 1] - 14
            notes.update((check + place, note) for place, note in CHECK_NOTES[:4 if padding else 3])
        else:
            notes[body] = "the body, not run"
    opcodes = [at for _, _, at in pickletools.genops(data)]
    rows = []
    for at, end, line in zip(opcodes, [*opcodes[1:], stop + 1], dis(data)):
        borders = sorted({at, end, *(place for place in notes if at < place < end)})
        if len(borders) > 2:
            starts = borders
        else:
            starts = [*range(at, end, ROW), end]
        text = line.partition(":")[2].strip()
        for start, after in zip(starts, starts[1:]):
            note = text if start == at else "  " + notes.get(start, "")
            chunks = range(start, after, ROW)
            if after - start > 2 * ROW and not any(data[start:after]):
                rows.append("%5d  %-35s  %s" % (start, "00 x %d" % (after - start), note))
                continue
            for chunk in chunks:
                pairs = data[chunk:min(chunk + ROW, after)].hex(" ")
                rows.append(("%5d  %-35s  %s" % (chunk, pairs, note if chunk == start else "")).rstrip())
    return [row.rstrip() for row in rows]


def bytes_of(rows):
    """The bytes that the rows of `beside` show."""
    found = b""
    for row in rows:
        offset, pairs = int(row[:5]), row[7:42].strip()
        assert offset == len(found), row
        found += bytes(int(pairs[5:])) if pairs.startswith("00 x ") else bytes.fromhex(pairs)
    return found


if __name__ == "__main__":
    print("\n".join(beside(pathlib.Path(sys.argv[1]).read_bytes())))
