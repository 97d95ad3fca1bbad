"""Packing examples whole into sequences, with as little room left over as best-fit decreasing gives."""

from __future__ import annotations

from collections.abc import Sequence


def pack(lengths: Sequence[int], context: int) -> list[list[int]]:
    """Which examples go into which sequence: longest first, each where it leaves the least room."""
    rows: list[list[int]] = []
    by_room: list[list[int]] = [[] for _ in range(context + 1)]
    open_rooms = 0  # bit r is set if some sequence has room for exactly r more
    for example in sorted(range(len(lengths)), key=lambda e: -lengths[e]):
        length = lengths[example]
        if not 0 < length <= context:
            raise ValueError(f"an example of {length} tokens does not fit into a sequence of {context}")
        fitting = open_rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            row = by_room[room].pop()
            if not by_room[room]:
                open_rooms ^= 1 << room
        else:
            room, row = context, len(rows)
            rows.append([])
        rows[row].append(example)
        if room > length:
            by_room[room - length].append(row)
            open_rooms |= 1 << (room - length)
    return rows
