//! Clients that ask for anything.

use std::collections::BTreeSet;

use fpga_regs::engine::event::{Event, EventType};
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use shim_abi::{CreateQp, FileId, Request, Response};
use trial::share::share;

use super::bench::{Bench, leaked, wanted_ah, wanted_qp};

/// splitmix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % end
    }

    /// Mostly one of the known numbers, which may be gone by now; sometimes any.
    fn number(&mut self, known: &[u32]) -> u32 {
        match (self.below(8), known.len() as u64) {
            (0, _) | (_, 0) => self.below(12) as u32,
            (_, count) => known[self.below(count) as usize],
        }
    }
}

const KINDS: [QpType; 5] = [QpType::Ud, QpType::Uc, QpType::XrcSend, QpType::Rc, QpType::Rc];

/// The objects that a client was told that it has.
#[derive(Default)]
struct Known {
    contexts: Vec<u32>,
    channels: Vec<u32>,
    pds: Vec<u32>,
    mrs: Vec<u32>,
    cqs: Vec<u32>,
    qps: Vec<u32>,
    srqs: Vec<u32>,
    ahs: Vec<u32>,
    xrcds: Vec<u32>,
    /// Handles, and the numbers of the QPs.
    targets: Vec<u32>,
    target_qps: Vec<u32>,
    dms: Vec<u32>,
    dm_mrs: usize,
    committed: usize,
}

impl Known {
    fn learn(&mut self, response: &Response) {
        match response {
            Response::Context(info) => self.contexts.push(info.context),
            Response::Channel { channel } => self.channels.push(*channel),
            Response::Pd { pdn } => self.pds.push(*pdn),
            Response::Reserved { mr, .. } => self.mrs.push(*mr),
            Response::Mr { .. } => self.committed += 1,
            Response::Cq { cqn, .. } => self.cqs.push(*cqn),
            Response::Srq { srqn, .. } => self.srqs.push(*srqn),
            Response::Qp { qpn, .. } => self.qps.push(*qpn),
            Response::Ah { ah, .. } => self.ahs.push(*ah),
            Response::Xrcd { xrcd } => self.xrcds.push(*xrcd),
            Response::Target { target, qpn } => {
                self.targets.push(*target);
                self.target_qps.push(*qpn);
            }
            Response::Dm { dm, .. } => self.dms.push(*dm),
            Response::DmMr { mr, .. } => {
                self.mrs.push(*mr);
                self.dm_mrs += 1;
            }
            _ => {}
        }
    }

    fn request(&self, dice: &mut Dice, memory: &[u8]) -> Request {
        let context = dice.number(&self.contexts);
        match dice.below(46) {
            0 => Request::ListCards,
            1 => Request::Status,
            2 => Request::OpenContext { card: dice.below(3) as u32 },
            3 => Request::CloseContext { context },
            4 => Request::QueryPort { context },
            5 => Request::CreateChannel { context },
            6 => Request::AllocPd { context },
            7 => Request::DeallocPd { pdn: dice.number(&self.pds) },
            8 | 26 => Request::ReserveMr {
                pdn: dice.number(&self.pds),
                address: memory.as_ptr() as u64 + dice.below(64),
                length: dice.below(memory.len() as u64 * 2),
                hca_va: dice.below(u64::MAX),
                access: dice.below(16) as u32,
            },
            9 | 27 => Request::CommitMr { mr: dice.number(&self.mrs) },
            10 => Request::DeregMr { mr: dice.number(&self.mrs) },
            11 => {
                let channel = (dice.below(2) == 0).then(|| dice.number(&self.channels));
                let log2_entries = dice.below(9) as u8;
                let vector = log2_entries % 4;
                Request::CreateCq { context, log2_entries, channel, vector, cookie: 0xdead }
            }
            12 => Request::DestroyCq { cqn: dice.number(&self.cqs) },
            13 | 14 | 21 | 22 => Request::CreateQp(CreateQp {
                kind: KINDS[dice.below(5) as usize].0,
                srqn: (dice.below(3) == 0).then(|| dice.number(&self.srqs)),
                log2_rq_stride: dice.below(5) as u8,
                log2_sq_blocks: dice.below(17) as u8,
                receive_cqn: dice.number(&self.cqs),
                ..wanted_qp(dice.number(&self.pds), dice.number(&self.cqs))
            }),
            15 => Request::DestroyQp { qpn: dice.number(&self.qps) },
            16 => Request::CreateSrq {
                pdn: dice.number(&self.pds),
                log2_entries: dice.below(17) as u8,
                log2_stride: dice.below(5) as u8,
                cookie: 0xdead,
            },
            17 => Request::DestroySrq { srqn: dice.number(&self.srqs) },
            18 => Request::ModifySrq { srqn: dice.number(&self.srqs), limit: dice.below(9) as u32 },
            19 => Request::QuerySrq { srqn: dice.number(&self.srqs) },
            20 => Request::QueryClock { context },
            23 => wanted_ah(dice.number(&self.pds)),
            24 => Request::DestroyAh { ah: dice.number(&self.ahs) },
            39 | 40 => {
                let (qpn, group) = (dice.number(&self.qps), [0xff; 16]);
                match dice.below(3) {
                    0 => Request::DetachMulticast { qpn, group },
                    _ => Request::AttachMulticast { qpn, group },
                }
            }
            30 | 31 => {
                Request::ResizeCq { cqn: dice.number(&self.cqs), log2_entries: dice.below(9) as u8 }
            }
            32 => Request::ReleaseCqRing { cqn: dice.number(&self.cqs) },
            33 => Request::AllocDm {
                context,
                length: dice.below(9000) as u32,
                log2_alignment: dice.below(18) as u8,
            },
            34 => Request::CopyDm {
                dm: dice.number(&self.dms),
                offset: dice.below(9000) as u32,
                length: dice.below(9000) as u32,
                to_card: dice.below(2) == 0,
            },
            35 | 36 => Request::RegDmMr {
                pdn: dice.number(&self.pds),
                dm: dice.number(&self.dms),
                offset: dice.below(3000),
                length: dice.below(3000),
                access: 32 + dice.below(16) as u32,
            },
            37 if dice.below(2) == 0 => Request::AllocNullMr { pdn: dice.number(&self.pds) },
            37 => Request::FreeDm { dm: dice.number(&self.dms) },
            38 => Request::ModerateCq {
                cqn: dice.number(&self.cqs),
                count: dice.below(3) as u16,
                period: dice.below(3) as u16,
            },
            28 => Request::ModifyMr {
                mr: dice.number(&self.mrs),
                pdn: dice.number(&self.pds),
                access: dice.below(16) as u32,
            },
            41..=45 => self.xrc_request(dice),
            29 => Request::MoveMr { mr: dice.number(&self.mrs), to: dice.number(&self.mrs) },
            _ => Request::ModifyQp {
                qpn: dice.number(&self.qps),
                first: (dice.below(2) == 0).then(|| any_change(dice)),
                attributes: any_change(dice),
            },
        }
    }

    /// Domains that all share, and one's own; targets in them, made and opened.
    fn xrc_request(&self, dice: &mut Dice) -> Request {
        let (xrcd, cookie) = (dice.number(&self.xrcds), 0xdead);
        let target = dice.number(&self.targets);
        match dice.below(12) {
            0 => Request::CloseXrcd { xrcd },
            1 | 2 => Request::OpenXrcd {
                context: dice.number(&self.contexts),
                file: (dice.below(4) != 0).then_some(FileId { device: 1, inode: 2 }),
                creates: dice.below(8) != 0,
                exclusive: dice.below(8) == 0,
            },
            3 | 4 => Request::CreateXrcSrq {
                xrcd,
                pdn: dice.number(&self.pds),
                cqn: dice.number(&self.cqs),
                log2_entries: dice.below(17) as u8,
                log2_stride: dice.below(5) as u8,
                cookie,
            },
            5 => Request::CreateTarget { xrcd, cookie },
            6..=8 => Request::OpenTarget { xrcd, qpn: dice.number(&self.target_qps), cookie },
            9 => Request::ModifyTarget { target, attributes: any_change(dice) },
            10 => Request::QueryTarget { target },
            _ => Request::DestroyTarget { target },
        }
    }
}

fn any_change(dice: &mut Dice) -> [[u64; 8]; 2] {
    let mask = AttributeMask::from_bits_retain(dice.below(1 << 21) as u32);
    let state = QpState(dice.below(9) as u8);
    Attributes { mask, state, ..Attributes::default() }.encode()
}

/// Pairs of clients that ask, and so many at most where those were granted too little.
const SEEDS: u64 = 75;
const MOST_SEEDS: u64 = 4 * SEEDS;
/// The number of each kind that has to be made before the test proves a rule: QPs, SRQs, address handles, keys, keys of
/// device memory, XRC targets, further handles of these.
const LEAST: [usize; 7] = [50, 50, 50, 50, 50, 50, 10];

#[test]
fn whatever_a_client_asks_for_its_end_gives_everything_back() {
    let memory = vec![0u8; 100_000];
    let (mut qps, mut srqs, mut ahs, mut keys, mut dm_mrs) = (0, 0, 0, 0, 0);
    let (mut targets, mut shared) = (0, 0);
    // Few of the clients' requests are granted: more clients ask until that proves something.
    let proves = |counts: [usize; 7]| {
        counts.iter().zip(LEAST).all(|(count, least)| *count > least / share())
    };
    for seed in 0..MOST_SEEDS {
        let counts = [qps, srqs, ahs, keys, dm_mrs, targets, shared];
        if seed >= SEEDS / share() as u64 && proves(counts) {
            break;
        }
        println!("seed {seed}");
        let mut dice = Dice(seed);
        let mut bench = Bench::new(2, 1);
        let at_rest: Vec<_> = bench.cards.iter().map(|card| card.mapped()).collect();
        let mut peers = [0, 1].map(|_| (bench.provider(), Known::default()));
        let mut all = Known::default();
        for _ in 0..440 {
            let (peer, known) = &mut peers[dice.below(2) as usize];
            // Sometimes it names an object that may be the other's.
            let named = if dice.below(8) == 0 { &all } else { &*known };
            let request = named.request(&mut dice, &memory);
            // Now and then it fails half way.
            let takings = (dice.below(4) == 0).then(|| dice.below(3) as u32);
            bench.cards.iter().for_each(|card| card.fail_after(takings));
            if let Ok(response) = bench.try_ask(peer, &request).0 {
                known.learn(&response);
                all.learn(&response);
            }
            let objects = [&all.cqs, &all.qps, &all.target_qps][dice.below(3) as usize];
            let event = Event {
                kind: EventType(dice.below(7) as u8),
                code: dice.below(20) as u8,
                number: dice.number(objects),
                ..Event::default()
            };
            bench.cards[0].raise(0, event);
        }
        drop(peers);
        bench.turn();
        for (card, at_rest) in bench.cards.iter().zip(at_rest) {
            assert_eq!(card.mapped(), at_rest, "seed {seed}");
            assert_eq!(card.granted(), 0, "seed {seed}");
            card.window(0, |w| assert!(w.live.is_empty(), "seed {seed}: {:?}", w.live));
        }
        for card in &bench.server.cards {
            assert_eq!(card.users[0].listeners.count(), Default::default(), "seed {seed}");
            assert_eq!(card.xrc.count(), (0, 0), "seed {seed}");
            assert_eq!(leaked(card), Default::default(), "seed {seed}");
        }
        qps += all.qps.len();
        srqs += all.srqs.len();
        ahs += all.ahs.len();
        keys += all.committed;
        dm_mrs += all.dm_mrs;
        let made = all.target_qps.iter().collect::<BTreeSet<_>>().len();
        targets += made;
        shared += all.target_qps.len() - made;
    }
    let counts = format!(
        "{qps} QPs, {srqs} SRQs, {ahs} address handles, {keys} keys, {dm_mrs} of device memory, \
         {targets} XRC targets, {shared} handles more of them"
    );
    println!("{counts}");
    assert!(proves([qps, srqs, ahs, keys, dm_mrs, targets, shared]), "{counts} prove little");
}
