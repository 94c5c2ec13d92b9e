# Synthesizes a module for UltraScale+ and prints the counts of its cells as the last line, in JSON.
import json
import os
import sys
import tempfile

from pyosys import libyosys as ys

module, files = sys.argv[1], sys.argv[2:]
design = ys.Design()
with tempfile.TemporaryDirectory() as directory:
    counts = os.path.join(directory, "stat.json")
    for command in [
        f"read_slang --top {module} " + " ".join(files),
        f"synth_xilinx -family xcup -uram -noiopad -noclkbuf -top {module} -flatten",
        f"tee -q -o {counts} stat -json",
    ]:
        ys.run_pass(command, design)
    with open(counts) as file:
        found = json.load(file)
cells = found["design"].get("num_cells_by_type", {})
print()
print(json.dumps(cells))
