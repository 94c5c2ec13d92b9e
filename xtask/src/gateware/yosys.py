# Synthesizes a module for UltraScale+ and prints the counts of its cells, and its levels of logic, as the last line, in JSON.
import json
import os
import sys
import tempfile

from pyosys import libyosys as ys

# Cells whose outputs follow their inputs in the same cycle, and those of them that are no level of logic.
LOGIC = ("LUT", "CARRY", "MUXF", "RAM32M", "RAM64M", "RAM128X", "RAM256X", "INV")
NO_LEVEL = ("INV", "MUXF")
# The read addresses of memories in LUTs, by the start of their outputs' names.
ADDRESSES = {"DPO": "DPRA", "SPO": "A"}


def followed(cell, port, index):
    """The bits that a bit of an output follows."""
    kind = cell["type"]
    for name, bits in cell["connections"].items():
        if cell["port_directions"][name] != "input":
            continue
        if kind.startswith("RAM"):
            if name != (ADDRESSES.get(port) or "ADDR" + port[2:]):
                continue
        elif kind.startswith("CARRY") and len(bits) > 1:
            bits = bits[: index + 1]
        yield from (bit for bit in bits if isinstance(bit, int))


def levels(cells):
    """The most levels of logic between two registers or ports."""
    follows = {}
    costs = {}
    for cell in cells.values():
        if not cell["type"].startswith(LOGIC):
            continue
        for port, bits in cell["connections"].items():
            if cell["port_directions"][port] == "output":
                for index, bit in enumerate(bits):
                    follows[bit] = list(followed(cell, port, index))
                    costs[bit] = 0 if cell["type"].startswith(NO_LEVEL) else 1
    depth = {}
    begun = set()
    for start in follows:
        waiting = [start]
        while waiting:
            bit = waiting[-1]
            before = [other for other in follows[bit] if other in follows]
            missing = [other for other in before if other not in depth]
            if bit in depth or not missing:
                depth[bit] = costs[bit] + max((depth[other] for other in before), default=0)
                waiting.pop()
            elif bit in begun:
                sys.exit(f"a loop of logic through bit {bit}")
            else:
                begun.add(bit)
                waiting += missing
    return max(depth.values(), default=0)


module, files = sys.argv[1], sys.argv[2:]
design = ys.Design()
with tempfile.TemporaryDirectory() as directory:
    netlist = os.path.join(directory, "netlist.json")
    for command in [
        f"read_slang --top {module} " + " ".join(files),
        f"synth_xilinx -family xcup -uram -noiopad -noclkbuf -top {module} -flatten",
        f"write_json -noscopeinfo {netlist}",
    ]:
        ys.run_pass(command, design)
    with open(netlist) as file:
        cells = json.load(file)["modules"][module]["cells"]
counts = {"levels": levels(cells)}
for cell in cells.values():
    counts[cell["type"]] = counts.get(cell["type"], 0) + 1
print()
print(json.dumps(counts))
