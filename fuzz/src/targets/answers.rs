//! balboad's driver of an engine, on a card that gives the input's answers.
//!
//! Checked promises: a command ends, with an answer to itself or with the engine's death; the
//! engine's reports are bounded, and so are arrivals at queue pair 1; a dead engine fails at once, and starts
//! again with a sound card.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use arbitrary::Unstructured;
use card_driver::Error;
use card_driver::admin::AdminEngine;
use card_driver::backend::{CardBackend, DoorbellGrant, GrantKind, Identity, WakeGrant};
use card_driver::engine::{Engine, EngineEvent, MOST_EVENT_RINGS};
use card_driver::gsi::{GsiAddress, Party};
use card_driver::iova::Arena;
use card_driver::shell::{Shell, SpacesOfWindows};
use fpga_regs::Block;
use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::tlb::Geometry;
use fpga_regs::coyote::vfpga::{self, Bank};
use fpga_regs::engine::admin::{
    AdminStatus, AllocDm, Completion, CopyDm, CreateAh, CreateCq, CreateKey, CreateQp, Header,
    Membership, ModerateCq, ModifyKey, Opcode, ResizeCq,
};
use fpga_regs::engine::cqe::{Cqe, Status, expected_phase};
use fpga_regs::engine::event::{Event, EventType};
use fpga_regs::engine::qp::{Attributes, GSI_QPN};
use fpga_regs::engine::window as w;
use hostmem::{DmaMemory, EventFd, SharedMapping, memfd};

use crate::Outcome;
use crate::random::Random;

const WINDOW: u8 = 1;
/// An address of the card's.
const GID: [u8; 16] = [0xfd; 16];

/// Events of an engine about itself at a time: that it lost events, and that it is dead.
const MOST_NEWS: usize = 2;

/// A card whose every answer is drawn; `sound` makes it answer as it should.
struct HostileCard {
    state: Mutex<State>,
    vector: EventFd,
}

struct State {
    random: Random,
    sound: bool,
    /// Memory of the driver's, by its address.
    mappings: BTreeMap<u64, Arc<SharedMapping>>,
    registers: HashMap<u64, u64>,
    /// Where the last completion queue is, and the memory of the last key.
    arrivals: u64,
    buffers: u64,
    status: u64,
    sq: u32,
    cq: u32,
    /// Events that were written to each ring.
    events: [u32; MOST_EVENT_RINGS as usize],
}

impl State {
    fn register(&self, offset: u64) -> u64 {
        self.registers.get(&offset).copied().unwrap_or(0)
    }

    fn store(&self, iova: u64, block: Block) {
        let Some((start, mapping)) = self.mappings.range(..=iova).next_back() else { return };
        let offset = iova - start;
        for (i, word) in (0..).zip(block) {
            let at = usize::try_from(offset + i * 8).unwrap_or(usize::MAX);
            let _ = mapping.store_release_u64(at, word);
        }
    }

    fn load(&self, iova: u64) -> Block {
        let Some((start, mapping)) = self.mappings.range(..=iova).next_back() else {
            return [0; 8];
        };
        let offset = iova - start;
        std::array::from_fn(|i| {
            let at = usize::try_from(offset + i as u64 * 8).unwrap_or(usize::MAX);
            mapping.load_acquire_u64(at).unwrap_or(0)
        })
    }

    /// Writes possible completions to the last completion queue, and possible headers of IPv6, of arrivals at
    /// queue pair 1, to the memory of the last key.
    fn scribble(&mut self) {
        for _ in 0..8 {
            let drawn = Cqe::decode(&[self.noise()]);
            let status = Status(self.random.below(16) as u8 / 15);
            let (wqe_index, phase) = (self.random.below(9) as u32, self.random.below(2) as u8);
            let entry = Cqe { wqe_index, byte_count: 296, status, phase, ..drawn };
            let [completion] = entry.encode();
            let half = u64::from_le_bytes([GID[0]; 8]);
            let header = [0x60, drawn.timestamp, 0, half, half, 0, 0, 0];
            let (place, buffer) = (64 * (1 + self.random.below(8)), 320 * self.random.below(8));
            self.store(self.arrivals.wrapping_add(place), completion);
            self.store(self.buffers.wrapping_add(buffer), header);
        }
    }

    fn noise(&mut self) -> Block {
        std::array::from_fn(|_| self.random.next_u64())
    }

    /// Answers the commands up to `producer`.
    fn answer(&mut self, producer: u32) {
        let sq = self.register(w::ADMIN_SQ_BASE);
        while self.sq != producer {
            let index = u64::from(self.sq) % (1 << self.register(w::ADMIN_SQ_SIZE));
            let command = self.load(sq + index * 64);
            let header = Header::decode(&[command]);
            match header.opcode {
                Opcode::CreateCq => self.arrivals = CreateCq::decode(&[command]).ring,
                Opcode::CreateKey => self.buffers = CreateKey::decode(&[command]).iova,
                _ => {}
            }
            self.sq = self.sq.wrapping_add(u32::from(header.blocks).max(1));
            let sound = Completion {
                tag: header.tag,
                opcode: header.opcode,
                status: AdminStatus::Success,
                result: if header.opcode == Opcode::CreateQp { GSI_QPN } else { 5 },
                ..Completion::default()
            };
            if self.sound {
                self.complete(sound);
                continue;
            }
            for _ in 0..[1, 1, 1, 2, 70][self.random.below(5) as usize] {
                let completion = self.hostile(sound);
                self.complete(completion);
            }
            if header.response != 0 && self.random.below(2) == 0 {
                let block = self.noise();
                self.store(header.response, block);
            }
        }
    }

    /// A completion that is right, nearly right, or nothing like it.
    fn hostile(&mut self, sound: Completion) -> Completion {
        match self.random.below(8) {
            0 => Completion { tag: sound.tag.wrapping_sub(1), ..sound },
            1 => Completion { opcode: Opcode(self.random.next_u64() as u8), ..sound },
            2 => Completion { status: AdminStatus(self.random.next_u64() as u8), ..sound },
            3 => {
                let noise = self.noise();
                Completion::decode(&[noise])
            }
            _ => Completion { result: self.random.next_u64() as u32, ..sound },
        }
    }

    fn complete(&mut self, completion: Completion) {
        if !self.sound && self.random.below(16) == 0 {
            return;
        }
        let log2 = self.register(w::ADMIN_CQ_SIZE) as u8;
        let phase = u8::from(expected_phase(self.cq, log2));
        let [block] = Completion { phase, ..completion }.encode();
        let index = u64::from(self.cq) % (1 << log2);
        self.store(self.register(w::ADMIN_CQ_BASE) + index * 64, block);
        self.cq = self.cq.wrapping_add(1);
    }

    /// Writes events, with or without regard to the room there is.
    fn raise(&mut self) {
        let log2 = self.register(w::EVENT_SIZE) as u8;
        let rings = self.register(w::EVENT_RINGS).clamp(1, MOST_EVENT_RINGS.into());
        let ring = self.random.below(rings) as usize;
        let count = [0, 1, 3, 5000][self.random.below(4) as usize];
        for _ in 0..count {
            let noise = self.noise();
            // Most are of no kind that ends the engine.
            let drawn = Event::decode(&[noise]);
            let kind = EventType((drawn.kind.0) % 6);
            let event =
                Event { kind, phase: u8::from(expected_phase(self.events[ring], log2)), ..drawn };
            let [block] = event.encode();
            let index = ((ring as u64) << log2) + u64::from(self.events[ring]) % (1 << log2);
            self.store(self.register(w::EVENT_BASE) + index * 64, block);
            self.events[ring] = self.events[ring].wrapping_add(1);
        }
        if count > 4096 {
            let status = w::Status::decode(self.status);
            self.status = status.with_overflows(status.overflows() | 1 << ring).encode();
        }
    }
}

fn register_of(offset: u64) -> Option<u64> {
    offset.checked_sub(vfpga::user_csr(WINDOW.into())).filter(|it| *it < w::WINDOW_BYTES)
}

impl HostileCard {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no call that holds it panics")
    }
}

impl CardBackend for HostileCard {
    fn read32(&self, _: Bar, _: u64) -> u32 {
        self.state().random.next_u64() as u32
    }

    fn write32(&self, _: Bar, _: u64, _: u32) {}

    fn write_wide(&self, _: u64, _: [u64; 4]) {}

    fn read64(&self, _: Bar, offset: u64) -> u64 {
        let mut state = self.state();
        let sound = state.sound;
        match register_of(offset) {
            Some(w::STATUS) if sound => state.status,
            Some(w::STATUS) => match state.random.below(16) {
                0 => u64::MAX,
                1 => state.status | w::STATUS_FATAL,
                _ => {
                    // A card that writes while it is looked at.
                    state.raise();
                    state.status
                }
            },
            Some(register) if sound => state.register(register),
            _ => state.random.next_u64(),
        }
    }

    fn write64(&self, _: Bar, offset: u64, value: u64) {
        let mut state = self.state();
        let Some(register) = register_of(offset) else { return };
        state.registers.insert(register, value);
        match register {
            w::CONTROL if value == w::CONTROL_RESET => {
                (state.sq, state.cq, state.events, state.status) = Default::default();
            }
            w::CONTROL => state.status = w::STATUS_ENABLED,
            w::EVENT_OVERFLOW_CLEAR => {
                let ring = w::EventOverflowClear::decode(value).ring;
                let status = w::Status::decode(state.status);
                let left = status.overflows() & !(1u8 << ring);
                state.status = status.with_overflows(left).encode();
            }
            w::ADMIN_DOORBELL => {
                state.answer(value as u32);
                if !state.sound {
                    state.raise();
                }
                let _ = self.vector.signal();
            }
            _ if !state.sound && register >= w::PAGE_BYTES => state.scribble(),
            _ => {}
        }
    }

    fn read_config(&self, _: u16) -> u16 {
        self.state().random.next_u64() as u16
    }

    fn write_config(&self, _: u16, _: u16) {}

    fn vector(&self, _: u16) -> Option<BorrowedFd<'_>> {
        Some(self.vector.as_fd())
    }

    fn dma_map(&self, iova: u64, _: u64, memory: DmaMemory) -> Result<(), Error> {
        if let DmaMemory::Shared { mapping, .. } = memory {
            self.state().mappings.insert(iova, mapping);
        }
        Ok(())
    }

    fn dma_unmap(&self, _: u64, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn iova_ranges(&self) -> Result<Vec<(u64, u64)>, Error> {
        Ok(vec![(0, u64::MAX)])
    }

    fn grant_kind(&self) -> GrantKind {
        GrantKind::Page
    }

    fn grant_page(&self, _: u8, _: u8) -> Result<DoorbellGrant, Error> {
        let wake = WakeGrant {
            eventfd: EventFd::new()?.into_fd(),
            thread_page: memfd::create("words", 4096)?,
            asleep: 0,
            liveness: 64,
            worked: 128,
        };
        Ok(DoorbellGrant::Page { page: memfd::create("page", 4096)?, wake })
    }

    fn revoke_page(&self, _: u8, _: u8) {}

    fn reset(&self) -> Result<(), Error> {
        Ok(())
    }

    fn identity(&self) -> Identity {
        Identity {
            board: String::new(),
            location: String::new(),
            link: String::new(),
            icrc_policy: None,
            congestion: None,
            seals: false,
            interface: String::new(),
        }
    }

    fn port_counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// The features of its window.
fn offers() -> HashMap<u64, u64> {
    let (log2_cq_entries, log2_sq_blocks, log2_rq_entries) = (3, 6, 3);
    let queues =
        w::LimitQueues { log2_cq_entries, log2_sq_blocks, log2_rq_entries, ..Default::default() };
    let port = w::LimitPort { gids: 16, ..Default::default() };
    let registers = [
        (w::CAPABILITIES, w::Capabilities::GSI.bits()),
        (w::LIMIT_QUEUES, queues.encode()),
        (w::LIMIT_PORT, port.encode()),
        (w::LIMIT_EVENTS, MOST_EVENT_RINGS.into()),
    ];
    registers.into()
}

/// Uses queue pair 1, if it is there.
fn talk(u: &mut Unstructured<'_>, card: &HostileCard, engine: &mut AdminEngine) -> Outcome {
    // No number but 1 would do.
    card.state().sound = true;
    let opened = engine.set_gid(1, Some(GID), 0).and_then(|()| engine.open_gsi());
    card.state().sound = false;
    let Ok(gsi) = opened else { return Ok(()) };
    let (sgid_index, dgid) = (u.arbitrary()?, [u.arbitrary()?; 16]);
    let (hop_limit, traffic_class, flow_label, sl) = (64, 0, 0, 0);
    let to = GsiAddress { sgid_index, dgid, hop_limit, traffic_class, flow_label, sl };
    for _ in 0..u.int_in_range(0..=20)? {
        let sent = gsi.send(Party::default(), &to, &[7; 256]);
        assert_eq!(sent.is_ok(), gsi.is_open());
        if u.ratio(1, 8)? {
            engine.service();
        }
    }
    // Its arrivals are bounded by its writes meanwhile, which a doorbell causes.
    let taken = (0..4096).take_while(|_| gsi.take().is_some()).count();
    assert!(taken < 4096, "datagrams without end");
    Ok(())
}

pub fn run(u: &mut Unstructured<'_>) -> Outcome {
    let state = State {
        random: Random::new(u.arbitrary()?),
        sound: true,
        mappings: BTreeMap::new(),
        registers: offers(),
        arrivals: 0,
        buffers: 0,
        status: 0,
        sq: 0,
        cq: 0,
        events: [0; MOST_EVENT_RINGS as usize],
    };
    let vector = EventFd::new().expect("a descriptor");
    let card = Arc::new(HostileCard { state: Mutex::new(state), vector });
    let backend: Arc<dyn CardBackend> = Arc::<HostileCard>::clone(&card);
    let large = Geometry { page_bits: 21, order: 9, ways: 2 };
    let translator = Arc::new(SpacesOfWindows::new(large, WINDOW + 1));
    let shell = Arc::new(Shell::new(0, backend, Bank::Plain, WINDOW + 1, translator));
    let mut engine =
        AdminEngine::start(0, Arc::clone(&shell), WINDOW, &mut Arena::new(&[(0, u64::MAX)]))
            .expect("a sound card starts");
    engine.set_command_limit(Duration::ZERO);
    card.state().sound = false;
    let mut commands = 0;
    while !u.is_empty() && commands < 24 {
        commands += 1;
        let seed: u64 = u.arbitrary()?;
        card.state().random = Random::new(seed);
        command(u, (&card, &shell), &mut engine)?;
        if u.ratio(1, 4)? {
            let mut news = 0usize;
            while let Some(event) = engine.next_event() {
                news += 1;
                assert!(news <= MOST_NEWS, "{event:?} is one of too many");
                assert!(event != EngineEvent::Dead || engine.death().is_some());
            }
        }
        if engine.death().is_some() {
            let refused = engine.create_cq(&CreateCq::default());
            assert!(matches!(refused, Err(Error::Dead { .. })), "{refused:?} of a dead engine");
            card.state().sound = true;
            engine.restart().expect("a sound card starts again");
            assert_eq!(engine.create_cq(&CreateCq::default()).ok(), Some(5));
            card.state().sound = false;
        }
    }
    Ok(())
}

/// One command; it has an outcome.
fn command(
    u: &mut Unstructured<'_>,
    (card, shell): (&HostileCard, &Shell),
    engine: &mut AdminEngine,
) -> Outcome {
    let number: u32 = u.arbitrary()?;
    match u.int_in_range(0..=25)? {
        21 => engine.close_gsi(),
        22..=25 => return talk(u, card, engine),
        17 => drop(engine.moderate_cq(&ModerateCq::default())),
        14 => drop(engine.alloc_dm(&AllocDm::default())),
        15 => drop(engine.free_dm(number)),
        16 => drop(engine.copy_dm(&CopyDm::default())),
        0 => drop(engine.create_cq(&CreateCq::default())),
        1 => drop(engine.destroy_cq(number)),
        2 => drop(engine.create_qp(&CreateQp::default())),
        3 => drop(engine.modify_qp(number, &Attributes::default())),
        4 => drop(engine.query_qp(number)),
        5 => drop(engine.destroy_qp(number)),
        6 => drop(engine.create_key(&CreateKey::default())),
        10 => drop(engine.create_ah(&CreateAh::default())),
        11 => drop((engine.query_ah(number), engine.destroy_ah(number))),
        7 => drop(engine.query_port()),
        8 => drop(engine.query_counters()),
        9 => {
            shell.attend().expect("the kernel lets it look");
            engine.service();
        }
        18 => drop(engine.attach_multicast(&Membership::default())),
        19 => drop(engine.detach_multicast(&Membership::default())),
        13 => drop(engine.resize_cq(&ResizeCq::default())),
        12 => drop(engine.modify_key(&ModifyKey::default())),
        _ => drop(engine.set_gid(number as u8, None, 0)),
    }
    Ok(())
}
