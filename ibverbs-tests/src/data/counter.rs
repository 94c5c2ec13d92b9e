//! Many clients that count in the same words: every addition counts once, and so does every swap whose comparison
//! holds.

use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};
use verbs_sys::current::verbs as v;

use super::link::{ACCESS, ConnectedSides, Options, Side};
use crate::ffi::{Atomic, AtomicOperation, Cq, Peer, Qp, QpWishes, Region};

/// Clients on each side; those of the right one are on the card that has the words.
const CLIENTS: usize = 4;
/// Rounds of each, of so many atomics.
const ROUNDS: usize = 100;
/// Additions of a round, and the swap behind them.
const ADDITIONS: usize = 3;
/// The addend: every byte of the sum has its part, and none is carried beyond it.
const STEP: u64 = 0x0001_0101_0101_0101;
/// Path MTU.
const MTU: v::ibv_mtu = v::IBV_MTU_1024;
const RIGHTS: v::ibv_access_flags = ACCESS | v::IBV_ACCESS_REMOTE_ATOMIC;

/// A QP that adds to the words.
struct Adder {
    qp: Qp,
    /// The end at the card with the words.
    _far: Qp,
    cq: Rc<Cq>,
    /// Where values from before go.
    results: Rc<Region>,
    /// The value that it believes the swapped word to have.
    seen: u64,
    /// The values that its additions have found.
    found: Vec<u64>,
    /// Its swaps that found the expected value.
    swapped: u64,
}

/// Runs all of it; answers how many atomics were executed.
///
/// # Errors
/// At the first thing that is not as it should be.
pub fn all(options: &Options) -> Result<usize> {
    let link = ConnectedSides::new(options, MTU, 4096)?;
    let device = link.right.context.attributes()?;
    ensure!(device.atomic_cap == v::IBV_ATOMIC_HCA, "atomic_cap is {}", device.atomic_cap);
    // One word for additions, one for swaps, and the bytes beside them.
    let words = Region::new(&link.right.pd, 4096, RIGHTS, false)?;
    let mut clients = Vec::new();
    for (number, side) in
        [&link.left, &link.right].into_iter().cycle().take(2 * CLIENTS).enumerate()
    {
        let psn = 1000 * number as u32;
        clients.push(Adder::new(&link, side, psn).with_context(|| format!("client {number}"))?);
    }
    for round in 0..ROUNDS {
        for client in &clients {
            client.post(&words, round).with_context(|| format!("round {round}"))?;
        }
        for client in &mut clients {
            client.collect(&link).with_context(|| format!("round {round}"))?;
        }
    }
    check(&clients, &words)?;
    Ok(clients.len() * ROUNDS * (ADDITIONS + 1))
}

fn check(clients: &[Adder], words: &Region) -> Result<()> {
    let additions = (clients.len() * ROUNDS * ADDITIONS) as u64;
    let word = |at: usize| {
        let mut bytes = [0; 8];
        words.read(at, &mut bytes);
        u64::from_ne_bytes(bytes)
    };
    let sum = additions.wrapping_mul(STEP);
    ensure!(word(0) == sum, "the sum is {:#x}, not {sum:#x}", word(0));
    let mut found: Vec<u64> =
        clients.iter().flat_map(|client| &client.found).map(|found| found / STEP).collect();
    found.sort_unstable();
    ensure!(found.into_iter().eq(0..additions), "two additions found the same");
    let in_order = |client: &Adder| client.found.is_sorted();
    ensure!(clients.iter().all(in_order), "additions of one client overtook each other");
    let swaps: u64 = clients.iter().map(|client| client.swapped).sum();
    ensure!(word(8) == swaps && swaps > 0, "{swaps} swaps, and {} is there", word(8));
    let mut rest = [0; 4080];
    words.read(16, &mut rest);
    ensure!(rest == [0; 4080], "something was written beside the words");
    Ok(())
}

impl Adder {
    fn new(link: &ConnectedSides, side: &Side, psn: u32) -> Result<Self> {
        let capabilities = v::ibv_qp_cap {
            max_send_wr: 8,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let cq = Cq::new(&side.context, 16, None)?;
        let far_cq = Cq::new(&link.right.context, 1, None)?;
        let qp = Qp::extended(&side.pd, [&cq, &cq], capabilities, QpWishes::default())?;
        let far = Qp::new(&link.right.pd, &far_cq, &far_cq, capabilities)?;
        let gid_index = link.options().gid_index;
        let peer = |side: &Side, qp: &Qp| -> Result<Peer> {
            let gid = side.context.gid(gid_index)?;
            Ok(Peer { qpn: qp.number(), gid, gid_index, send_psn: psn, receive_psn: psn, mtu: MTU })
        };
        for (own, other) in [(&qp, peer(&link.right, &far)?), (&far, peer(side, &qp)?)] {
            own.init(RIGHTS)?;
            own.connect(&other)?;
        }
        let results = Region::new(&side.pd, 4096, ACCESS, false)?;
        let (seen, found, swapped) = Default::default();
        Ok(Self { qp, _far: far, cq, results, seen, found, swapped })
    }

    fn atomic(&self, words: &Region, number: usize) -> Atomic {
        let (operation, at) = match number {
            ADDITIONS => {
                let (compare, swap) = (self.seen, self.seen + 1);
                (AtomicOperation::CompareSwap { compare, swap }, 8)
            }
            _ => (AtomicOperation::FetchAdd { add: STEP }, 0),
        };
        Atomic {
            wr_id: number as u64,
            operation,
            result: vec![self.results.piece(16 * number, 8)],
            remote: (words.address() + at, words.rkey()),
        }
    }

    /// Posts the atomics of a round, in every other one as a list that is built call by call.
    fn post(&self, words: &Region, round: usize) -> Result<()> {
        self.results.write(0, &[0xee; 16 * (ADDITIONS + 1)]);
        let list: Vec<_> = (0..=ADDITIONS).map(|number| self.atomic(words, number)).collect();
        if round % 2 == 0 {
            self.qp.build_atomics(&list)?;
            return Ok(());
        }
        for atomic in &list {
            self.qp.post_atomic(atomic)?;
        }
        Ok(())
    }

    /// Takes their results.
    fn collect(&mut self, link: &ConnectedSides) -> Result<()> {
        for number in 0..=ADDITIONS {
            let done = link.success(&self.cq)?;
            let opcode =
                if number == ADDITIONS { v::IBV_WC_COMP_SWAP } else { v::IBV_WC_FETCH_ADD };
            let told = (done.wr_id, done.opcode, done.byte_len, done.qp_num);
            ensure!(told == (number as u64, opcode, 8, self.qp.number()), "{done:?}");
            let mut bytes = [0; 16];
            self.results.read(16 * number, &mut bytes);
            let (value, beside) = bytes.split_at(8);
            ensure!(beside == [0xee; 8], "something was written behind a result");
            let value = u64::from_ne_bytes(value.try_into()?);
            if number < ADDITIONS {
                self.found.push(value);
            } else if value == self.seen {
                self.swapped += 1;
                self.seen += 1;
            } else {
                self.seen = value;
            }
        }
        Ok(())
    }
}
