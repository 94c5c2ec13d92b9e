//! The cost of each verb on the bus between a card and its host, counted at a client that the card asks for every
//! access, beside that of other cards by their drivers' sources.
//!
//! `docs/pcie-cost.md` has the tables, between its two marks; the test here fails unless they agree with its counts,
//! and writes them if `PCIE_COST=write` is in its environment.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::wqe::{
    ATOMIC_PAYLOAD_OFFSET, Atomic, SEND_PAYLOAD_OFFSET, SendFlags, SendHeader, SendOpcode, Sge,
};
use fpga_regs::{BLOCK_BYTES, Block};

use crate::driver::{Asked, Driver, Qp, Reach, Region};
use crate::support::Served;

/// Payload of a TLP, and bytes that a read may ask for at once, as most machines set them.
const MAX_PAYLOAD: u64 = 256;
const MAX_READ: u64 = 512;
/// Bytes of a TLP beside its payload: header, sequence number, LCRC and framing, with 64-bit addresses.
const REQUEST: u64 = 24;
const COMPLETION: u64 = 20;
/// Bytes of an index in a doorbell record.
const WORD: u64 = 4;
/// The page, and the marks around its tables.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/pcie-cost.md");
const BEGIN: &str = "<!-- counted by softcard/tests/serve/pcie.rs: begin -->\n";
const END: &str = "<!-- counted by softcard/tests/serve/pcie.rs: end -->";
/// Times that each verb is counted, each with the same result.
const TIMES: usize = 3;

/// The accesses of one post: their bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Moves {
    /// Stores of the program to the card's pages.
    stores: Vec<u64>,
    /// Reads of the card from memory, and its writes to memory.
    reads: Vec<u64>,
    writes: Vec<u64>,
}

impl Moves {
    /// What a card asked for. Writes into one block that join are one: the model splits an entry's last word off where
    /// a card orders its bytes within a TLP. A word of a doorbell record counts once: the model polls, and reads it
    /// whenever it looks.
    fn of(asked: &[Asked], stores: u64) -> Self {
        let mut moves = Self { stores: vec![8; stores as usize], ..Self::default() };
        let mut last: Option<Asked> = None;
        let mut words = BTreeSet::new();
        for access in asked {
            if !access.write && access.bytes == WORD && !words.insert(access.address) {
                continue;
            }
            let block = |at: u64| at / BLOCK_BYTES as u64;
            let joins = last.is_some_and(|last| {
                last.write
                    && access.write
                    && last.address + last.bytes == access.address
                    && block(last.address) == block(access.address)
            });
            let side = if access.write { &mut moves.writes } else { &mut moves.reads };
            match side.last_mut() {
                Some(bytes) if joins => *bytes += access.bytes,
                _ => side.push(access.bytes),
            }
            last = Some(*access);
        }
        moves
    }

    /// Those of another card: a list of each kind.
    fn told(stores: &[u64], reads: &[u64], writes: &[u64]) -> Self {
        Self { stores: stores.into(), reads: reads.into(), writes: writes.into() }
    }

    fn transactions(&self) -> usize {
        self.stores.len() + self.reads.len() + self.writes.len()
    }

    /// TLPs of both directions, and their bytes.
    fn packets(&self) -> (u64, u64) {
        let written = self.stores.iter().chain(&self.writes).map(|bytes| {
            let packets = bytes.div_ceil(MAX_PAYLOAD);
            (packets, packets * REQUEST + bytes)
        });
        let read = self.reads.iter().map(|bytes| {
            let (asks, answers) = (bytes.div_ceil(MAX_READ), bytes.div_ceil(MAX_PAYLOAD));
            (asks + answers, asks * REQUEST + answers * COMPLETION + bytes)
        });
        written.chain(read).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    fn line(&self, name: &str) -> String {
        let (packets, bytes) = self.packets();
        let lists = [&self.stores, &self.reads, &self.writes].map(|list| text(list));
        let [stores, reads, writes] = lists;
        let transactions = self.transactions();
        format!(
            "| {name} | {stores} | {reads} | {writes} | {transactions} | {packets} | {bytes} |\n"
        )
    }
}

/// Numbers of bytes, with a factor where one comes several times in turn.
fn text(list: &[u64]) -> String {
    let runs = list.chunk_by(|one, other| one == other);
    let words = runs.map(|run| match run.len() {
        1 => run[0].to_string(),
        times => format!("{times} × {}", run[0]),
    });
    let words: Vec<String> = words.collect();
    if words.is_empty() { "–".into() } else { words.join(", ") }
}

/// A verb that is counted.
#[derive(Clone, Copy)]
struct Verb {
    name: &'static str,
    opcode: SendOpcode,
    bytes: u32,
    inline: bool,
    /// Requests that are posted with one doorbell.
    requests: u32,
}

/// Two cards on one cable, and a QP on each.
struct CabledCards {
    _served: [Served; 2],
    drivers: [Driver; 2],
    qps: [Qp; 2],
    regions: [Region; 2],
}

impl CabledCards {
    fn new() -> Self {
        let served = Served::pair();
        let mut drivers = [1, 2].map(|number| {
            Driver::new(&served[usize::from(number) - 1].socket(), Reach::Asked, number)
        });
        let [a, b] = &mut drivers;
        let qps = [a.create_qp(), b.create_qp()];
        a.connect(&qps[0], b.gid(), qps[1].qpn);
        b.connect(&qps[1], a.gid(), qps[0].qpn);
        let regions = drivers.each_mut().map(|driver| driver.register(8192));
        Self { _served: served, drivers, qps, regions }
    }

    /// Posts a verb once, and waits until everything of it is complete; the accesses at the requester, and at the
    /// responder.
    fn moves(&mut self, verb: Verb) -> [Moves; 2] {
        let [a, b] = &mut self.drivers;
        let [from, to] = &mut self.qps;
        for driver in [&mut *a, &mut *b] {
            driver.asked.clear();
            driver.rung = 0;
        }
        let receives = verb.opcode == SendOpcode::Send;
        if receives {
            b.post_receive(to, self.regions[1], verb.bytes);
        }
        for _ in 0..verb.requests {
            a.write_send(from, &request(verb, self.regions[0], self.regions[1]));
        }
        a.ring_send(from);
        let mut received = !receives;
        for _ in 0..verb.requests {
            let done = a.wait(|a| {
                b.attend();
                received |= b.poll(to).is_some_and(|done| done.status == Status::Success);
                a.poll(from)
            });
            assert_eq!(done.status, Status::Success, "{}", verb.name);
        }
        b.wait(|b| {
            a.attend();
            received |= b.poll(to).is_some_and(|done| done.status == Status::Success);
            received.then_some(())
        });
        // The consumer's index is read once in a lap of the ring, when it seems full.
        a.asked.retain(|access| access.address != from.cq);
        b.asked.retain(|access| access.address != to.cq);
        [Moves::of(&a.asked, a.rung), Moves::of(&b.asked, b.rung)]
    }
}

/// The entry of a verb's request.
fn request(verb: Verb, from: Region, to: Region) -> Vec<Block> {
    let Verb { opcode, bytes, inline, .. } = verb;
    let atomic = matches!(opcode, SendOpcode::FetchAdd | SendOpcode::CompareSwap);
    let begin = if atomic { ATOMIC_PAYLOAD_OFFSET } else { SEND_PAYLOAD_OFFSET };
    let end = begin + if inline { bytes as usize } else { 16 };
    let blocks = end.div_ceil(BLOCK_BYTES);
    let header = SendHeader {
        opcode,
        flags: if inline { SendFlags::SIGNALED | SendFlags::INLINE } else { SendFlags::SIGNALED },
        num_sge: u8::from(!inline),
        blocks: blocks as u8,
        inline_length: if inline { bytes } else { 0 },
        remote_address: to.va,
        rkey: to.key,
        ..SendHeader::default()
    };
    let mut entry = vec![[0; 8]; blocks];
    entry[0] = header.encode()[0];
    if atomic {
        let [operands] = Atomic { swap_add: 1, compare: 0 }.encode();
        entry[0].iter_mut().zip(operands).for_each(|(word, more)| *word |= more);
    }
    if !inline {
        let sge = Sge { address: from.va, length: bytes, lkey: from.key }.encode();
        entry[0][begin / 8..begin / 8 + 2].copy_from_slice(&sge);
    }
    entry
}

/// A verb, and its cost: the counted one of our cards, and that of other cards by their drivers.
type Rows = Vec<(&'static str, [Moves; 2], [[Option<Moves>; 2]; 2])>;

const fn verb(name: &'static str, opcode: SendOpcode, bytes: u32) -> Verb {
    Verb { name, opcode, bytes, inline: false, requests: 1 }
}

fn rows() -> Rows {
    type Code = SendOpcode;
    let told =
        |stores: &[u64], reads: &[u64], writes: &[u64]| Some(Moves::told(stores, reads, writes));
    let inline = Verb { inline: true, ..verb("WRITE, 64 bytes inline", Code::Write, 64) };
    let many = Verb { requests: 8, ..verb("8 WRITEs of 64 bytes, one doorbell", Code::Write, 64) };
    // Of each verb mlx5's requester and responder, then efa's.
    let others = [
        (
            verb("WRITE, 64 bytes", Code::Write, 64),
            [
                [told(&[8], &[64, 64], &[64]), told(&[], &[], &[64])],
                [told(&[64, 4], &[64], &[32]), told(&[], &[], &[64])],
            ],
        ),
        (
            inline,
            [
                [told(&[64, 64], &[], &[64]), told(&[], &[], &[64])],
                [told(&[64, 64, 4], &[], &[32]), told(&[], &[], &[64])],
            ],
        ),
        (
            verb("WRITE, 4,096 bytes", Code::Write, 4096),
            [
                [told(&[8], &[64, 4096], &[64]), told(&[], &[], &[4096])],
                [told(&[64, 4], &[4096], &[32]), told(&[], &[], &[4096])],
            ],
        ),
        (
            many,
            [
                [
                    told(&[8], &[[512].as_slice(), &[64; 8]].concat(), &[64; 8]),
                    told(&[], &[], &[64; 8]),
                ],
                [
                    told(&[[64; 8].as_slice(), &[4]].concat(), &[64; 8], &[32; 8]),
                    told(&[], &[], &[64; 8]),
                ],
            ],
        ),
        (
            verb("READ, 64 bytes", Code::Read, 64),
            [
                [told(&[8], &[64], &[64, 64]), told(&[], &[64], &[])],
                [told(&[64, 4], &[], &[64, 32]), told(&[], &[64], &[])],
            ],
        ),
        (
            verb("READ, 4,096 bytes", Code::Read, 4096),
            [
                [told(&[8], &[64], &[4096, 64]), told(&[], &[4096], &[])],
                [told(&[64, 4], &[], &[4096, 32]), told(&[], &[4096], &[])],
            ],
        ),
        (
            verb("SEND, 64 bytes, and its receive", Code::Send, 64),
            [
                [told(&[8], &[64, 64], &[64]), told(&[], &[16], &[64, 64])],
                [told(&[64, 4], &[64], &[32]), told(&[4], &[16], &[64, 32])],
            ],
        ),
        (
            verb("FETCH_ADD, 8 bytes", Code::FetchAdd, 8),
            [[told(&[8], &[64], &[8, 64]), told(&[], &[8], &[8])], [None, None]],
        ),
    ];
    let mut cards = CabledCards::new();
    let mut row = |(verb, others): (Verb, [[Option<Moves>; 2]; 2])| {
        // The first one of each kind may find the card's tables empty.
        cards.moves(verb);
        let counted: Vec<_> = (0..TIMES).map(|_| cards.moves(verb)).collect();
        for once in &counted {
            assert_eq!(once, &counted[0], "{}: not the same each time", verb.name);
        }
        (verb.name, counted[0].clone(), others)
    };
    others.into_iter().map(&mut row).collect()
}

/// The tables of the page.
fn tables(rows: &Rows) -> String {
    let mut text = String::new();
    for (side, title) in ["At the requester", "At the responder"].into_iter().enumerate() {
        let _ = write!(
            text,
            "\n### {title}\n\n| verb | card | stores to the card | reads | writes | transactions | TLPs | bytes on the link |\n|---|---|---|---|---|---|---|---|\n"
        );
        for (verb, ours, [mlx5, efa]) in rows {
            let cards = [
                ("balboa", Some(&ours[side])),
                ("mlx5", mlx5[side].as_ref()),
                ("efa", efa[side].as_ref()),
            ];
            if cards.iter().all(|(_, moves)| *moves == Some(&ours[side])) {
                text.push_str(&ours[side].line(&format!("{verb} | each")));
                continue;
            }
            for (number, (card, moves)) in cards.into_iter().enumerate() {
                let name = if number == 0 { *verb } else { "" };
                match moves {
                    Some(moves) => text.push_str(&moves.line(&format!("{name} | {card}"))),
                    None => {
                        let _ = writeln!(text, "| {name} | {card} | not offered | | | | | |");
                    }
                }
            }
        }
    }
    text.push('\n');
    text
}

#[test]
fn the_page_of_pcie_costs_tells_what_the_bus_sees() {
    let counted = tables(&rows());
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has its first mark");
    let (told, after) = rest.split_once(END).expect("the page has its second mark");
    if std::env::var_os("PCIE_COST").is_some_and(|word| word == "write") {
        std::fs::write(Path::new(PAGE), format!("{before}{BEGIN}{counted}{END}{after}")).unwrap();
        return;
    }
    assert!(told == counted, "docs/pcie-cost.md is stale; this is counted:\n{counted}");
}

#[test]
fn entries_that_a_card_writes_in_two_parts_are_one_tlp_and_others_are_not() {
    let write = |address, bytes| Asked { write: true, address, bytes };
    let read = |address, bytes| Asked { write: false, address, bytes };
    let moves = |asked: &[Asked]| Moves::of(asked, 1);
    assert_eq!(moves(&[write(64, 56), write(120, 8)]), Moves::told(&[8], &[], &[64]));
    assert_eq!(moves(&[write(64, 64), write(128, 64)]), Moves::told(&[8], &[], &[64, 64]));
    assert_eq!(
        moves(&[write(64, 56), read(0, 4), write(120, 8)]),
        Moves::told(&[8], &[4], &[56, 8])
    );
    let long = Moves::told(&[8], &[4096], &[300]);
    assert_eq!(
        (long.transactions(), long.packets()),
        (3, (1 + 8 + 16 + 2, 32 + 8 * 24 + 16 * 20 + 4096 + 48 + 300))
    );
}
