#!/usr/bin/env python3
"""A driver of the card, written from docs/card-contract.md alone.

It shows that the document suffices: every offset, bit, code and layout is read out of the
document's tables, and what is done with them is what its prose says. It brings two cards up, sends
from the first to the second, and checks what arrives. Standard library only.

    drive_card.py DOCUMENT [before-2026]

What it needs of a machine it asks for on standard output, one line each, numbers in hexadecimal,
and reads one line of answer from standard input:

    read CARD BAR OFFSET BYTES          the value
    write CARD BAR OFFSET BYTES VALUE   done
    memory BYTES                        the path of a file of zeroes to map
    map CARD ADDRESS MEMORY OFFSET LENGTH   done: the card reaches that memory at the address
    unmap CARD ADDRESS LENGTH           done: it does not any more
    page CARD VFPGA PAGE                done: that doorbell page is open
    wait CARD VECTOR MILLISECONDS       1 when the interrupt came, 0 when not

Exit codes: 0 all is as it should be; 1 something is not, and the last line on standard error says
what.
"""

import mmap
import re
import signal
import struct
import sys
import time

# Beside the sources nothing is left behind.
sys.dont_write_bytecode = True

from card_document import Contract, Failed, check, pack_bits, unpack_bits

# How long anything may take, in seconds.
LIMIT = 20


# ---- The machine


def ask(line):
    print(line, flush=True)
    answer = sys.stdin.readline()
    check(answer, f"nobody answers {line!r}")
    return answer.strip()


class Memory:
    """Memory that the card reaches too."""

    count = 0

    def __init__(self, size):
        path = ask(f"memory {size:x}")
        self.index, Memory.count = Memory.count, Memory.count + 1
        with open(path, "r+b") as file:
            self.bytes = mmap.mmap(file.fileno(), size)
        self.words = memoryview(self.bytes).cast("Q")
        self.halves = memoryview(self.bytes).cast("I")

    def store64(self, at, value):
        self.words[at // 8] = value

    def store32(self, at, value):
        self.halves[at // 4] = value

    def load64(self, at):
        return self.words[at // 8]

    def put(self, at, data):
        self.bytes[at : at + len(data)] = data

    def get(self, at, size):
        return self.bytes[at : at + size]


def until(what, test, pause=0.0002):
    end = time.monotonic() + LIMIT
    while True:
        found = test()
        if found is not None and found is not False:
            return found
        check(time.monotonic() < end, f"{what}: not within {LIMIT} s")
        time.sleep(pause)


# ---- The card


class Ring:
    """A ring that the engine writes, from a byte offset of the memory on."""

    def __init__(self, memory, at, log2, entry):
        self.memory, self.at, self.log2, self.entry = memory, at, log2, entry
        self.index = 0

    def take(self):
        """The next entry, if its phase says that it was written."""
        at = self.at + (self.index & (1 << self.log2) - 1) * 64
        last = self.memory.load64(at + 56)
        phase = last >> 56 & 1
        if phase != (1 if (self.index >> self.log2) % 2 == 0 else 0):
            return None
        self.index = self.index + 1 & 0xFFFFFFFF
        return self.entry.unpack(self.memory.get(at, 64))


# Where things stand in a card's memory, in bytes. Rings of queues begin with their record.
ADMIN_SQ, ADMIN_CQ, EVENTS, RESPONSE = 0x0000, 0x2000, 0x4000, 0x8000
CQ, RQ, SQ = 0x10000, 0x20000, 0x30000
PAYLOAD = 0x200000
PAYLOAD_BYTES = 0x100000
MEMORY_BYTES = 0x400000
LOG2_ADMIN = LOG2_EVENTS = 6
LOG2_CQ = LOG2_SQ = 4
PAGE, PDN, HPID = 3, 77, 4711


class Card:
    """One card, and the engine in the first vFPGA that has one."""

    def __init__(self, contract, number, old_map):
        self.c, self.number, self.old_map = contract, number, old_map
        self.ip = 0x0A000001 + number
        self.mac = bytes([2, 0, 10, 0, 0, 1 + number])
        # Somewhere in the low part of the 2^44 bytes, another place for each card.
        self.iova = 0x40000000 + number * 0x10000000
        self.va = 0x7F0012345000 + number * 0x100000000
        self.vfpga = 0
        self.tag = 0

    def where(self, name, place=None, unit=0, index=0):
        register = self.c.registers[name]
        place = place if place is not None else next(iter(register.places))
        bar, base, stride = register.places[place]
        offset = register.before if self.old_map else register.offset
        check(offset is not None, f"this map has no {name}")
        return bar, base + unit * stride + offset + index * register.stride, register.bytes

    def read(self, name, **where):
        bar, offset, size = self.where(name, **where)
        return int(ask(f"read {self.number:x} {bar:x} {offset:x} {size:x}"), 16)

    def write(self, name, value, **where):
        bar, offset, size = self.where(name, **where)
        ask(f"write {self.number:x} {bar:x} {offset:x} {size:x} {value:x}")

    # -- Bring-up, in the document's order

    def probe(self):
        for name in ("Static layer: PROBE", "Shell registers: PROBE"):
            found = self.read(name)
            size = self.c.registers[name].bytes
            check(found != (1 << 8 * size) - 1, f"card {self.number} left the bus")
            check(found == self.c.numbers["PROBE_VALUE"], f"card {self.number} holds another design: {found:#x}")

    def bring_up(self):
        c = self.c
        self.probe()
        for place, identifier in (("host to card", 0x1FC0), ("card to host", 0x1FC1)):
            for channel in range(c.numbers["CHANNELS"]):
                where = {"place": place, "unit": channel}
                found = self.read("ENGINE_IDENTIFIER", **where)
                found = c.registers["ENGINE_IDENTIFIER"].unpack(found)
                wanted = {"channel": channel, "identifier": identifier}
                check(found == wanted, f"DMA engine {place} {channel}: {found}")
                control = c.registers["ENGINE_CONTROL"]
                run = control.pack(run=1, irq_stopped=1, irq_completed=1)
                self.write("ENGINE_CONTROL", run, **where)
        self.write("PR_EOST", c.numbers["PR_EOST_DEFAULT"])
        self.write("PR_EOST_RESET", 0)
        self.write("PR_EOST_RESET", 1)
        time.sleep(0.00001)

        self.probe()
        check(1 <= self.read("N_CHAN") <= c.numbers["CHANNELS"], "the number of channels")
        regions = self.read("N_REGIONS")
        check(1 <= regions <= c.numbers["MAX_VFPGAS"], f"{regions} vFPGAs")
        rdma = c.registers["RDMA_CNFG"].unpack(self.read("RDMA_CNFG"))
        check(rdma["enabled"] == 1, "the RDMA stack is not built in")
        self.write("IP_ADDRESS", c.registers["IP_ADDRESS"].pack(ipv4=self.ip))
        mac = int.from_bytes(self.mac, "big")
        self.write("MAC_ADDRESS", c.registers["MAC_ADDRESS"].pack(mac=mac))

        vectors = c.registers["USER_VECTOR_MAP"]
        for word in range(4):
            four = dict(zip(("first", "second", "third", "fourth"), range(word * 4, word * 4 + 4)))
            self.write("USER_VECTOR_MAP", vectors.pack(**four), index=word)
        self.write("USER_INTERRUPT_ENABLE_SET", c.numbers["USER_INTERRUPT_VFPGAS"])

        for self.vfpga in range(regions):
            if self.read_engine("MAGIC") == c.numbers["MAGIC_VALUE"]:
                break
        else:
            raise Failed("no vFPGA holds an engine")
        version = c.registers["VERSION"].unpack(self.read_engine("VERSION"))
        check(version["major"] == c.numbers["VERSION_MAJOR"], f"contract {version}")
        offers = self.read_engine("CAPABILITIES")
        wanted = c.flags("window_capabilities", ["RC", "WRITE"])
        check(offers & wanted == wanted, f"the engine offers {offers:#x}")
        self.give_memory()
        self.start()

    def read_engine(self, name):
        return self.read(name, unit=self.vfpga)

    def write_engine(self, name, value):
        self.write(name, value, unit=self.vfpga)

    def status(self):
        return self.c.registers["STATUS"].unpack(self.read_engine("STATUS"))

    def give_memory(self):
        """Maps memory for the card, and enters it into the TLB of the vFPGA."""
        self.memory = Memory(MEMORY_BYTES)
        ask(f"map {self.number:x} {self.iova:x} {self.memory.index:x} 0 {MEMORY_BYTES:x}")
        shape = self.c.registers["CTRL_CNFG"].unpack(self.read("CTRL_CNFG"))
        self.order, self.page_bits = shape["ltlb_order"], shape["ltlb_page_bits"]
        self.bank = "AVX bank" if shape["avx"] else "plain bank"
        # The page of the payload is left to a page fault.
        check(1 << self.page_bits <= PAYLOAD, "pages are larger than this driver takes them for")
        self.enter(range(self.iova >> self.page_bits, self.iova + PAYLOAD >> self.page_bits))

    def isr(self, **fields):
        isr = self.c.registers["ISR"].pack(**fields)
        self.write("ISR", isr, place=self.bank, unit=self.vfpga)

    @property
    def isr_read(self):
        """The fields of the ISR that are read."""
        return self.c.registers["ISR"].halves["read"]

    def lock(self):
        self.isr(lock=1, invalidate=1)

    def enter(self, pages, valid=1):
        """Inserts pages that are their own translation, or removes them."""
        self.lock()
        for page in pages:
            self.tlb_entry(page, valid)
        self.lock()

    def tlb_entry(self, page, valid):
        where = {"place": "large pages", "unit": self.vfpga}
        set_, tag = page & (1 << self.order) - 1, page >> self.order
        tag_bits = 48 - self.page_bits - self.order
        stream = self.c.code("vfpga_stream", "Host")
        above = self.c.numbers["CTID"] | stream << 6 | valid << 8
        second = set_ | tag << self.order | above << self.order + tag_bits
        self.write("TLB_WORD_0", page | HPID << 32, **where)
        self.write("TLB_WORD_1", second, **where)

    def cnfg(self, name):
        """Reads a control register of the vFPGA."""
        value = self.read(name, place=self.bank, unit=self.vfpga)
        return self.c.registers[name].unpack(value) if self.c.registers[name].fields else value

    def interrupt(self, wanted):
        """Waits for an event of a kind, and takes those of the engine meanwhile."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            if ask(f"wait {self.number:x} {self.vfpga:x} {1000:x}") == "0":
                continue
            value = self.read("ISR", place=self.bank, unit=self.vfpga)
            isr = unpack_bits(self.isr_read, value)
            if isr["kind"] == self.c.code("vfpga_event_kind", wanted):
                return isr
            # Nothing is reported: the interrupt was left over.
            if isr["kind"] == self.c.code("vfpga_event_kind", "Offload"):
                continue
            check(isr["kind"] == self.c.code("vfpga_event_kind", "Notify"), f"event {isr}")
            self.isr(clear_pending=1)
        raise Failed(f"no event of kind {wanted} within {LIMIT} s")

    def page_fault(self, write, start, end):
        """Answers a page fault that must be there, in a range of addresses."""
        isr = self.interrupt("PageFault")
        check(isr["write"] == write, f"the fault is {isr}")
        vaddr, ctid = self.cnfg("ISR_VADDR")["vaddr"], self.cnfg("ISR_PID")["ctid"]
        check(start <= vaddr < end, f"the fault is at {vaddr:#x}")
        check(ctid == self.c.numbers["CTID"], f"the fault is in address space {ctid}")
        self.isr(clear_pending=1)
        self.enter([vaddr >> self.page_bits])
        self.restart(write)

    def restart(self, write):
        """Lets a transfer go on that met a fault."""
        self.write("ISR_PID", self.c.numbers["CTID"], place=self.bank, unit=self.vfpga)
        self.isr(**{"restart_write" if write else "restart_read": 1}, success=1)

    def overwritten_fault(self):
        """An invalidation hides where a fault is: it is let come again."""
        isr = self.interrupt("PageFault")
        page = self.iova - 1 >> self.page_bits
        check(self.invalidate(page), "an event that was there already came between")
        hidden = self.cnfg("ISR_VADDR")["vaddr"]
        check(hidden == page << self.page_bits, f"the fault is read at {hidden:#x} all the same")
        self.isr(clear_pending=1)
        self.restart(isr["write"])

    def invalidate(self, page, last=0):
        """Orders the invalidation of a page; whether no event came between."""
        where = {"place": self.bank, "unit": self.vfpga}
        self.write("ISR_PID", self.c.numbers["CTID"] | HPID << 32, **where)
        self.write("ISR_VADDR", page << self.page_bits, **where)
        self.write("ISR_LEN", 1 << self.page_bits, **where)
        self.isr(invalidate=1, invalidate_last=last)
        return self.cnfg("ISR_PID")["hpid"] == HPID

    def take_memory(self):
        """Removes every page from the TLB, and only then takes the memory back."""
        first, end = self.iova >> self.page_bits, self.iova + MEMORY_BYTES >> self.page_bits
        self.enter(range(first, end), valid=0)
        for page in range(first, end):
            last = int(page == end - 1)
            check(self.invalidate(page, last), f"an event came amid the removal of page {page:#x}")
        self.interrupt("Invalidated")
        self.isr(clear_pending=1)
        ask(f"unmap {self.number:x} {self.iova:x} {MEMORY_BYTES:x}")

    def start(self):
        c = self.c
        self.write_engine("CONTROL", c.registers["CONTROL"].pack(reset=1))
        until("reset of the engine", lambda: self.read_engine("STATUS") == 0)
        self.memory.put(0, bytes(PAYLOAD))
        for name, value in (
            ("ADMIN_SQ_BASE", self.iova + ADMIN_SQ),
            ("ADMIN_SQ_SIZE", LOG2_ADMIN),
            ("ADMIN_CQ_BASE", self.iova + ADMIN_CQ),
            ("ADMIN_CQ_SIZE", LOG2_ADMIN),
            ("EVENT_BASE", self.iova + EVENTS),
            ("EVENT_SIZE", LOG2_EVENTS),
        ):
            self.write_engine(name, value)
        self.write_engine("CONTROL", c.registers["CONTROL"].pack(enable=1))
        until("start of the engine", lambda: self.status()["enabled"])
        self.admin_producer = 0
        self.admin = Ring(self.memory, ADMIN_CQ, LOG2_ADMIN, c.entries["admin_completion"])
        self.events = Ring(self.memory, EVENTS, LOG2_EVENTS, c.entries["event"])
        mac = self.mac
        eui = bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]
        self.gids = [
            b"\xfe\x80" + bytes(6) + eui,
            bytes(10) + b"\xff\xff" + self.ip.to_bytes(4, "big"),
        ]
        for index, gid in enumerate(self.gids):
            self.command("SetGid", "admin_set_gid", index=index, valid=1, gid=gid)
        ask(f"page {self.number:x} {self.vfpga:x} {PAGE:x}")

    # -- Commands

    def submit(self, opcode, blocks, response=0):
        """Runs a command; answers with its completion, whatever the status."""
        c = self.c
        self.tag += 1
        code = c.code("admin_opcode", opcode)
        head = c.entries["admin_header"].pack(
            opcode=code, blocks=len(blocks) // 64, tag=self.tag, response=response
        )
        blocks = head[:16] + blocks[16:]
        for start in range(0, len(blocks), 64):
            place = self.admin_producer & (1 << LOG2_ADMIN) - 1
            self.memory.put(ADMIN_SQ + place * 64, blocks[start : start + 64])
            self.admin_producer = self.admin_producer + 1 & 0xFFFFFFFF
        doorbell = c.registers["ADMIN_DOORBELL"].pack(producer=self.admin_producer)
        self.write_engine("ADMIN_DOORBELL", doorbell)
        answer = until(opcode, self.admin.take)
        check(answer["tag"] == self.tag and answer["opcode"] == code, f"{opcode}: {answer}")
        return answer

    def command(self, opcode, entry, more=b"", response=0, **fields):
        answer = self.submit(opcode, self.c.entries[entry].pack(**fields) + more, response)
        success = self.c.code("admin_status", "Success")
        check(answer["status"] == success, f"card {self.number} refuses {opcode}: {answer}")
        return answer

    def make_queues(self):
        where = {"page": PAGE}
        ring = self.iova
        self.cqn = self.command(
            "CreateCq", "admin_create_cq", ring=ring + CQ, log2_entries=LOG2_CQ, **where
        )["result"]
        self.rqn = self.command(
            "CreateRq", "admin_create_rq", ring=ring + RQ, log2_entries=2, log2_stride=0,
            kind=self.c.code("admin_rq_kind", "Private"), pdn=PDN, **where
        )["result"]
        answer = self.command(
            "CreateQp", "admin_create_qp", sq_ring=ring + SQ, log2_sq_blocks=LOG2_SQ,
            kind=self.c.code("qp_type", "Rc"), pdn=PDN, send_cqn=self.cqn,
            receive_cqn=self.cqn, rqn=self.rqn, **where
        )
        self.qpn, self.generation = answer["result"], answer["generation"]
        check(self.qpn >> 20 == self.vfpga, f"QPN {self.qpn:#x} does not name its vFPGA")
        access = self.c.flags("key_access", ["LOCAL_WRITE", "REMOTE_WRITE"])
        self.key = self.command(
            "CreateKey", "admin_create_key", va=self.va, length=PAYLOAD_BYTES,
            iova=self.iova + PAYLOAD, pdn=PDN, access=access,
            kind=self.c.code("admin_key_kind", "Region"),
        )["result"]
        self.completions = Ring(self.memory, CQ + 64, LOG2_CQ, self.c.entries["cqe"])
        self.producer = 0
        self.psn = 0x100000 * (self.number + 1) + 5

    def modify(self, start, end, **values):
        """Changes the state, with what the document requires."""
        names = ["STATE"] + self.c.transitions["RC", start, end]
        attributes = self.c.entries["qp_attributes"].pack(
            mask=self.c.flags("qp_attribute_mask", names),
            state=self.c.code("qp_state", end), **values
        )
        answer = self.command("ModifyQp", "admin_modify_qp", more=attributes, qpn=self.qpn)
        return answer["generation"]

    def connect(self, peer):
        access = self.c.flags("key_access", ["REMOTE_WRITE"])
        self.modify("Reset", "Init", pkey_index=0, port=1, access=access)
        self.modify(
            "Init", "Rtr", sgid_index=1, dgid=peer.gids[1], hop_limit=64, path_mtu=5,
            dest_qpn=peer.qpn, rq_psn=peer.psn, max_dest_rd_atomic=1, min_rnr_timer=12,
        )
        self.modify(
            "Rtr", "Rts", timeout=14, retry_count=7, rnr_retry=7, sq_psn=self.psn,
            max_rd_atomic=1,
        )

    # -- Work

    def ring_doorbell(self, kind, number, generation, index):
        slot = self.c.code("doorbell_queue_code", kind) * self.c.numbers["SLOTS_PER_KIND"]
        slot += number % self.c.numbers["SLOTS_PER_KIND"]
        value = pack_bits(
            self.c.words["doorbell_slot_value"],
            {"index": index, "number": number & 0xFFFFFF, "generation": generation},
        )
        bar, base, stride = next(iter(self.c.registers["MAGIC"].places.values()))
        offset = base + self.vfpga * stride + PAGE * self.c.numbers["PAGE_BYTES"] + slot * 8
        ask(f"write {self.number:x} {bar:x} {offset:x} 8 {value:x}")

    def post(self, wqe):
        """Writes a WQE of whole blocks, the record, and the slot; answers with its index."""
        index = self.producer
        for start in range(0, len(wqe), 64):
            place = self.producer & (1 << LOG2_SQ) - 1
            self.memory.put(SQ + 64 + place * 64, wqe[start : start + 64])
            self.producer = self.producer + 1 & 0xFFFFFFFF
        self.memory.store32(SQ, self.producer)
        self.ring_doorbell("Send", self.qpn, self.generation, self.producer)
        return index

    def write_wqe(self, remote, rkey, flags, pieces=(), inline=b""):
        return write_wqe(self.c, remote, rkey, flags, pieces, inline)

    def completion(self, index, status="Success"):
        """Takes the next completion, which must be that of the WQE at an index."""
        entry = until("completion", self.completions.take)
        self.memory.store32(CQ, self.completions.index)
        expected = {
            "qpn": self.qpn,
            "wqe_index": index,
            "opcode": self.c.code("cqe_opcode", "Write"),
            "status": self.c.code("cqe_status", status),
            "generation": self.generation,
        }
        found = {name: entry[name] for name in expected}
        check(found == expected, f"completion {found}, not {expected}")
        return entry

    def arm(self, sequence):
        word = pack_bits(
            self.c.words["doorbell_arm_word"],
            {
                "consumer": self.completions.index,
                "arm_sequence": sequence,
                "kind": self.c.code("doorbell_arm_code", "Any"),
            },
        )
        fields = self.c.entries["doorbell_completion_record"].fields
        self.memory.store32(CQ + fields["armed_for_any"][0], sequence)
        self.memory.store64(CQ + fields["arm"][0], word)
        self.ring_doorbell("Completion", self.cqn, 0, sequence)

    def event(self):
        """Waits for the interrupt, as long as it takes to find an event behind it."""
        while True:
            self.interrupt("Notify")
            self.isr(clear_pending=1)
            event = self.events.take()
            if event:
                consumer = self.c.registers["EVENT_CONSUMER"].pack(consumer=self.events.index)
                self.write_engine("EVENT_CONSUMER", consumer)
                return event


def write_wqe(c, remote, rkey, flags, pieces=(), inline=b""):
    """An RDMA WRITE of pieces (address, length, lkey), or of inline data."""
    if inline:
        flags = ["INLINE"] + flags
        payload = inline
    else:
        payload = b"".join(
            c.entries["wqe_sge"].pack(address=address, length=length, lkey=lkey)
            for address, length, lkey in pieces
        )
    offset = c.numbers["SEND_PAYLOAD_OFFSET"]
    blocks = -(-(offset + len(payload)) // 64)
    head = c.entries["wqe_send_header"].pack(
        opcode=c.code("wqe_send_opcode", "Write"),
        flags=c.flags("wqe_send_flags", flags),
        num_sge=len(pieces),
        blocks=blocks,
        inline_length=len(inline),
        remote_address=remote,
        rkey=rkey,
    )
    return (head[:offset] + payload).ljust(blocks * 64, b"\0")


# ---- What is tried


def examples(c):
    """The document's examples are what its tables say."""
    title, dump, _ = c.example("RDMA WRITE, signaled")
    pattern = r"of (\d+) bytes from (\w+) \(lkey (\w+)\) to (\w+) \(rkey (\w+)\)"
    length, address, lkey, remote, rkey = (int(it, 0) for it in re.search(pattern, title).groups())
    wqe = write_wqe(c, remote, rkey, ["SIGNALED"], [(address, length, lkey)])
    check(wqe == dump, f"the example of a WQE is {dump.hex()}, not {wqe.hex()}")

    _, dump, _ = c.example("The same with the")
    inline = write_wqe(c, remote, rkey, ["SIGNALED"], inline=bytes(range(40)))
    check(inline == dump, "the example of an inline WQE")

    title, _, lines = c.example("The slot of the send queue")
    pattern = r"QP (\w+), generation (\w+), in doorbell page (\d+), producer index (\d+)"
    qpn, generation, page, index = (int(it, 0) for it in re.search(pattern, title).groups())
    value = int(re.search(r"value +(0x\w+)", "\n".join(lines))[1], 16)
    found = unpack_bits(c.words["doorbell_slot_value"], value)
    check(found == {"index": index, "number": qpn, "generation": generation}, f"slot {found}")
    place = int(re.search(r"in the window (0x\w+)", "\n".join(lines))[1], 16)
    check(place == page * c.numbers["PAGE_BYTES"] + qpn % 128 * 8, f"slot at {place:#x}")

    _, dump, _ = c.example("The completion, the first")
    entry = c.entries["cqe"].unpack(dump)
    check(entry["qpn"] == qpn and entry["generation"] == generation, f"completion {entry}")
    check(entry["phase"] == 1 and entry["byte_count"] == length, f"completion {entry}")


def write_pieces(sender, receiver):
    """A WRITE of two pieces, several packets long, at odd addresses, into page faults."""
    data = bytes((i * 7 + i // 251) & 0xFF for i in range(10_007))
    first, second = 6_001, len(data) - 6_001
    sender.memory.put(PAYLOAD + 101, data[:first])
    sender.memory.put(PAYLOAD + 0x9003, data[first:])
    before = bytes([0xEE]) * PAYLOAD_BYTES
    receiver.memory.put(PAYLOAD, before)
    wqe = sender.write_wqe(
        receiver.va + 777,
        receiver.key,
        ["SIGNALED"],
        [(sender.va + 101, first, sender.key), (sender.va + 0x9003, second, sender.key)],
    )
    index = sender.post(wqe)
    for card, write in ((sender, 0), (receiver, 1)):
        start = card.iova + PAYLOAD
        card.overwritten_fault()
        card.page_fault(write, start, start + PAYLOAD_BYTES)
    entry = sender.completion(index)
    check(entry["byte_count"] == len(data), f"{entry['byte_count']} bytes, not {len(data)}")
    wanted = before[:777] + data + before[777 + len(data) :]
    check(receiver.memory.get(PAYLOAD, PAYLOAD_BYTES) == wanted, "other bytes arrived")
    check(receiver.completions.take() is None, "the receiver of a WRITE got a completion")


def write_inline_armed(sender, receiver):
    """An unsignaled and a signaled inline WRITE; the second one fires an armed queue."""
    sender.arm(1)
    quiet = sender.write_wqe(receiver.va + 1, receiver.key, [], inline=b"quiet")
    sender.post(quiet)
    data = bytes(range(100, 200))
    index = sender.post(sender.write_wqe(receiver.va + 9, receiver.key, ["SIGNALED"], inline=data))
    event = sender.event()
    wanted = {"kind": sender.c.code("event_type", "Completion"), "number": sender.cqn, "data": 1}
    check({name: event[name] for name in wanted} == wanted, f"event {event}")
    sender.completion(index)
    check(sender.completions.take() is None, "an unsignaled WRITE got a completion")
    check(receiver.memory.get(PAYLOAD + 1, 5) == b"quiet", "the first inline WRITE")
    check(receiver.memory.get(PAYLOAD + 9, 100) == data, "the second inline WRITE")


def laps(sender, receiver):
    """More entries than the rings have: indices go on, phases alternate."""
    for number in range(40):
        data = struct.pack("<Q", number * 0x0101010101010101 & (1 << 64) - 1)
        wqe = sender.write_wqe(receiver.va + 8 * number, receiver.key, ["SIGNALED"], inline=data)
        sender.completion(sender.post(wqe))
        found = receiver.memory.get(PAYLOAD + 8 * number, 8)
        check(found == data, f"WRITE {number} brought {found.hex()}")


def refuse(sender, receiver):
    """A wrong rkey fails its WRITE and flushes the next; RESET begins a new generation."""
    wrong = receiver.key ^ 1
    bad = sender.post(sender.write_wqe(receiver.va, wrong, ["SIGNALED"], inline=b"never"))
    late = sender.post(sender.write_wqe(receiver.va, receiver.key, [], inline=b"never"))
    sender.completion(bad, "RemoteAccess")
    sender.completion(late, "Flushed")
    check(receiver.memory.get(PAYLOAD, 5) != b"never", "a wrong key opened the memory")
    response = sender.iova + RESPONSE
    sender.command("QueryQp", "admin_destroy", response=response, number=sender.qpn)
    query = sender.c.entries["qp_attributes"].unpack(sender.memory.get(RESPONSE, 128))
    check(query["state"] == sender.c.code("qp_state", "Err"), f"the QP is in {query['state']}")
    generation = sender.modify("Err", "Reset")
    check(generation == sender.generation + 1 & 0xFF, f"generation {generation}")


def refused_commands(card):
    """What cannot be is refused with the status that the document names."""
    def status(opcode, entry, **fields):
        answer = card.submit(opcode, card.c.entries[entry].pack(**fields))
        names = {value: name for name, value in card.c.codes["admin_status"].items()}
        return names[answer["status"]]

    ring = card.iova + 0x40000
    found = [
        status("DestroyCq", "admin_destroy", number=card.cqn),
        status("DestroyCq", "admin_destroy", number=card.cqn ^ 1),
        status("CreateCq", "admin_create_cq", ring=ring + 8, log2_entries=2, page=PAGE),
        status("CreateCq", "admin_create_cq", ring=ring, log2_entries=40, page=PAGE),
        status("CreateQp", "admin_create_qp", kind=77),
        status("ModifyQp", "admin_modify_qp", qpn=card.qpn),
        status("CreateKey", "admin_create_key", iova=(1 << 44) - 1, length=2, pdn=PDN),
    ]
    wanted = ["Busy", "NotFound", "Invalid", "Invalid", "Unsupported", "Invalid", "BadAddress"]
    check(found == wanted, f"refusals {found}, not {wanted}")


def tear_down(card):
    for opcode, number in (
        ("DestroyQp", card.qpn),
        ("DestroyRq", card.rqn),
        ("DestroyCq", card.cqn),
        ("DestroyKey", card.key),
    ):
        card.command(opcode, "admin_destroy", number=number)
    card.write_engine("CONTROL", card.c.registers["CONTROL"].pack(reset=1))
    until("reset of the engine", lambda: card.read_engine("STATUS") == 0)
    card.take_memory()


def main():
    signal.alarm(6 * LIMIT)
    contract = Contract(sys.argv[1])
    old_map = "before-2026" in sys.argv[2:]
    examples(contract)
    cards = [Card(contract, number, old_map) for number in range(2)]
    for card in cards:
        card.bring_up()
        card.make_queues()
    sender, receiver = cards
    sender.connect(receiver)
    receiver.connect(sender)
    write_pieces(sender, receiver)
    write_inline_armed(sender, receiver)
    laps(sender, receiver)
    refused_commands(receiver)
    refuse(sender, receiver)
    for card in cards:
        tear_down(card)


if __name__ == "__main__":
    try:
        main()
    except Failed as failed:
        print(f"drive_card.py: {failed}", file=sys.stderr)
        sys.exit(1)
