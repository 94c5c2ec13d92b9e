"""The card contract, read out of docs/card-contract.md and its chapters: registers, entries, words, codes, examples.

Nothing here knows the card: every name, offset and bit comes from the document's tables.
"""

import pathlib
import re


class Failed(Exception):
    """Something is not as the document says."""


def check(condition, text):
    if not condition:
        raise Failed(text)


class Register:
    """Where a register stands, and its bit fields by name."""

    def __init__(self, places, bits, offset, before):
        self.places, self.bytes = places, bits // 8
        self.offset, self.before = offset, before
        self.stride = 0
        self.fields = {}
        # Fields of registers that are written as one thing and read as another.
        self.halves = {"written": {}, "read": {}}

    def pack(self, **values):
        return pack_bits(self.fields, values)

    def unpack(self, value):
        return unpack_bits(self.fields, value)


def pack_bits(fields, values):
    word = 0
    for name, value in values.items():
        high, low = fields[name]
        check(value >> (high - low + 1) == 0, f"{name} has no room for {value:#x}")
        word |= value << low
    return word


def unpack_bits(fields, word):
    return {name: word >> low & (1 << high - low + 1) - 1 for name, (high, low) in fields.items()}


class Entry:
    """An entry in memory: its bytes, and its fields by name as (offset, bytes, raw)."""

    def __init__(self, size):
        self.size, self.fields = size, {}

    def pack(self, **values):
        out = bytearray(self.size)
        for name, value in values.items():
            offset, size, raw = self.fields[name]
            out[offset : offset + size] = value if raw else value.to_bytes(size, "little")
        return bytes(out)

    def unpack(self, data):
        return {
            name: data[at : at + size] if raw else int.from_bytes(data[at : at + size], "little")
            for name, (at, size, raw) in self.fields.items()
        }


def cells(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def bit_range(text):
    high, _, low = text.strip("[]").partition(":")
    return int(high), int(low or high)


class Contract:
    """The document's tables and examples."""

    def __init__(self, path):
        self.registers, self.entries, self.words, self.codes = {}, {}, {}, {}
        self.numbers, self.transitions, self.examples = {}, {}, {}
        first = pathlib.Path(path)
        pages = [first, *sorted(first.with_suffix("").glob("*.md"))]
        lines = [line for page in pages for line in page.read_text("utf-8").splitlines()]
        tables, text, at = [], [], 0
        while at < len(lines):
            if lines[at].startswith("|"):
                end = at
                while end < len(lines) and lines[end].startswith("|"):
                    end += 1
                rows = [cells(line) for line in lines[at:end]]
                tables.append((text, rows[0], rows[2:]))
                text, at = [], end
            elif lines[at].startswith("```"):
                end = lines.index("```", at + 1)
                title = next(line for line in reversed(text) if line)
                self.examples[title] = lines[at + 1 : end]
                at = end + 1
            else:
                if lines[at].startswith("#"):
                    text = []
                text.append(lines[at])
                at += 1
        for text, head, rows in tables:
            self.table(text, head, rows)

    def table(self, text, head, rows):
        title = next((line for line in reversed(text) if line), "")
        named = re.match(r"\*\*`(\w+)`\*\* \((\w+)(?:,)? ?(\w+)?", title)
        if head[0] == "offset" and "access" in head:
            self.register_table(text, head, rows)
        elif head[:3] == ["offset", "bytes", "field"]:
            size = re.search(r"\((\d+) bytes\)", title)
            entry = Entry(int(size[1]))
            for offset, size, name, meaning in rows:
                raw = meaning.endswith("Raw bytes.")
                entry.fields[name] = (int(offset, 16), int(size), raw)
            self.entries[named[1]] = entry
        elif head[:2] == ["bits", "field"]:
            self.words[named[1]] = {row[1]: bit_range(row[0]) for row in rows}
        elif head[:2] == ["value", "name"]:
            self.codes[named[1]] = {row[1]: int(row[0]) for row in rows}
        elif head[:2] == ["bit", "name"]:
            self.codes[named[1]] = {row[1]: 1 << int(row[0]) for row in rows}
        elif head[:2] == ["name", "value"]:
            self.numbers.update({row[0]: int(row[1], 0) for row in rows})
        elif head == ["from", "to", "required", "optional"]:
            kind = re.findall(r"Transitions of an? (\w+) QP", " ".join(text))[-1]
            for start, end, required, _ in rows:
                self.transitions[kind, start, end] = [it for it in required.split(", ") if it]

    def register_table(self, text, head, rows):
        places = {}
        for line in text:
            place = re.match(
                r"- Base(?: \((.*)\))?: BAR(\d) \+ (0x\w+)(?: \+ \*i\* × (0x\w+))?", line
            )
            if place:
                places[place[1] or ""] = (int(place[2]), int(place[3], 16), int(place[4] or "0", 16))
        bits = int(re.search(r"Registers of (\d+) bits", "\n".join(text))[1])
        register = None
        for row in rows:
            row = dict(zip(head, row))
            if row["offset"] or row.get("before 2026"):
                name = re.match(r"\*\*(\w+)\*\*", row["name"])[1]
                offsets = [
                    None if cell == "–" else int(cell, 16)
                    for cell in (row["offset"], row.get("before 2026", row["offset"]))
                ]
                register = Register(places, bits, *offsets)
                stride = re.search(r"One every (0x\w+) bytes", row["meaning"])
                register.stride = int(stride[1], 16) if stride else 0
                # The static layer and the shell both have a PROBE: the block's title tells.
                title = text[0].lstrip("# ")
                self.registers[f"{title}: {name}"] = register
                self.registers.setdefault(name, register)
            else:
                register.fields[row["name"]] = bit_range(row["bits"])
                register.halves.get(row["access"], {})[row["name"]] = bit_range(row["bits"])

    def code(self, name, value):
        return self.codes[name][value]

    def flags(self, name, values):
        return sum(self.codes[name][value] for value in values)

    def example(self, start):
        """The first example whose title begins so: its title and its bytes, or its lines."""
        title = next((it for it in self.examples if it.startswith(start)), None)
        check(title, f"the document has no example {start!r}")
        dump = b""
        for line in self.examples[title]:
            found = re.match(r"[0-9a-f]{2,}: ((?:[0-9a-f]{2} ?)+)$", line)
            dump += bytes.fromhex(found[1]) if found else b""
        return title, dump, self.examples[title]
