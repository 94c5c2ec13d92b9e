//! Arming a completion queue while a completion arrives, under loom: the engine itself is the card's
//! thread, and the words that it shares with the program are the model checker's.

#![expect(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "a test may panic")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use fpga_regs::Block;
use fpga_regs::engine::admin::{
    AdminStatus, Completion, CreateCq, CreateQp, CreateRq, Header, ModifyQp, Opcode, SetGid,
};
use fpga_regs::engine::doorbell::{self, Arm, ArmKind, QueueKind, record};
use fpga_regs::engine::event::{Event, EventType};
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use fpga_regs::engine::window::{self, Capabilities, LimitRate, Profile};
use loom::sync::atomic::{AtomicU64, Ordering};
use queue_engine::{
    DoorbellPage, Engine, EngineConfig, Message, Random, Record, Ring, Rings, Transport,
    TransportError, TransportEvent,
};

const ADMIN_SQ: u64 = 0x1000;
const ADMIN_CQ: u64 = 0x2000;
const EVENTS: u64 = 0x3000;
const CQ: u64 = 0x1_0000;
const RQ: u64 = 0x2_0000;
const SQ: u64 = 0x3_0000;

/// Memory of which one word, the CQ's arming, is shared with the program.
#[derive(Clone, Debug)]
struct Memory {
    words: Rc<RefCell<HashMap<u64, u64>>>,
    arm: Rc<AtomicU64>,
}

impl Memory {
    fn load(&self, address: u64) -> u64 {
        match address == CQ + record::ARM as u64 {
            true => self.arm.load(Ordering::Acquire),
            false => self.words.borrow().get(&address).copied().unwrap_or(0),
        }
    }

    fn block(&self, address: u64) -> Block {
        std::array::from_fn(|i| self.load(address + 8 * i as u64))
    }

    fn store(&self, address: u64, block: &Block) {
        let mut words = self.words.borrow_mut();
        (0..).zip(block).for_each(|(i, word)| {
            words.insert(address + 8 * i, *word);
        });
    }
}

#[derive(Debug)]
struct View(Memory, u64, u64);

impl Record for View {
    fn load_u32(&self, offset: usize) -> u32 {
        (self.0.load(self.1 + (offset as u64 & !7)) >> ((offset & 4) * 8)) as u32
    }

    fn load_u64(&self, offset: usize) -> u64 {
        self.0.load(self.1 + offset as u64)
    }
}

impl Ring for View {
    fn read(&self, index: u32) -> Block {
        self.0.block(self.1 + (u64::from(index) & self.2) * 64)
    }

    fn write(&self, index: u32, value: &Block) {
        self.0.store(self.1 + (u64::from(index) & self.2) * 64, value);
    }

    fn publish(&self, index: u32, value: &Block) {
        self.write(index, value);
    }
}

impl Rings for Memory {
    type Record = View;
    type Ring = View;

    fn record(&self, iova: u64) -> Option<View> {
        self.ring(iova, 0)
    }

    fn ring(&self, iova: u64, log2_blocks: u8) -> Option<View> {
        Some(View(self.clone(), iova, (1 << log2_blocks) - 1))
    }

    fn reachable(&self, _: u64, _: u64) -> bool {
        true
    }
}

/// A doorbell page of which one slot is rung.
#[derive(Clone, Debug)]
struct Page(Rc<AtomicU64>, usize);

impl DoorbellPage for Page {
    fn load(&self, slot: usize) -> u64 {
        if slot == self.1 { self.0.load(Ordering::Acquire) } else { 0 }
    }
}

/// Numbers that count up: each object has a number space of its own.
struct Counting(u32);

impl Random for Counting {
    fn next_u32(&mut self) -> u32 {
        self.0 += 1;
        self.0
    }
}

/// A transport that carries nothing.
#[derive(Default)]
struct Nothing;

impl Transport for Nothing {
    fn create_qp(&mut self, _: u32, _: &CreateQp) -> Result<(), AdminStatus> {
        Ok(())
    }

    fn modify_qp(&mut self, _: u64, _: u32, _: &Attributes) -> Result<(), AdminStatus> {
        Ok(())
    }

    fn query_qp(&self, _: u32) -> Option<Attributes> {
        None
    }

    fn destroy_qp(&mut self, _: u32) {}

    fn room(&self, _: u32) -> usize {
        0
    }

    fn submit(&mut self, _: u64, _: u32, _: &Message) -> Result<u64, TransportError> {
        Err(TransportError::Full)
    }

    fn counters(&self) -> Vec<u64> {
        Vec::new()
    }
}

const CONFIG: EngineConfig = EngineConfig {
    window: 0,
    profile: Profile::Vqe,
    capabilities: Capabilities::RC,
    qps: 1,
    cqs: 1,
    rqs: 1,
    keys: 1,
    ahs: 1,
    groups: 8,
    qps_per_group: 4,
    rates: LimitRate { min: 1_000, max: 100_000_000 },
    log2_cq_entries: 4,
    log2_sq_blocks: 4,
    log2_rq_entries: 4,
    max_rd_atomic: 1,
    max_message: 1,
    device_memory: 0,
    event_rings: 1,
    under_way_bytes: 1 << 20,
};

struct Card {
    engine: Engine<Memory, Page, Counting>,
    memory: Memory,
    lower: Nothing,
    commands: u32,
}

impl Card {
    fn command(&mut self, opcode: Opcode, blocks: &[Block]) -> u32 {
        let header = Header { opcode, blocks: blocks.len() as u8, tag: 1, response: 0 }.encode();
        for (i, block) in (0..).zip(blocks) {
            let mut block = *block;
            if i == 0 {
                block.iter_mut().zip(header[0]).for_each(|(word, more)| *word |= more);
            }
            self.memory.store(ADMIN_SQ + 64 * (self.commands as u64 + i), &block);
        }
        self.commands += blocks.len() as u32;
        self.write(window::ADMIN_DOORBELL, self.commands.into());
        let at =
            (0..64).map(|i| ADMIN_CQ + 64 * i).take_while(|at| self.memory.block(*at) != [0; 8]);
        let last = at.last().unwrap();
        let completion = Completion::decode(&[self.memory.block(last)]);
        assert_eq!((completion.opcode, completion.status), (opcode, AdminStatus::Success));
        completion.result
    }

    fn write(&mut self, register: u64, value: u64) {
        self.engine.write_register(register, value, &mut self.lower);
        self.engine.execute(1, &self.memory, &mut self.lower);
    }

    /// Completion events raised so far.
    fn fired(&self) -> usize {
        let events = (0..16).map(|i| Event::decode(&[self.memory.block(EVENTS + 64 * i)]));
        events.filter(|event| event.phase == 1 && event.kind == EventType::Completion).count()
    }
}

/// A card with a CQ and a QP whose one receive a completion will be made of.
fn card(memory: &Memory, slot: &Rc<AtomicU64>) -> (Card, u32) {
    // The first number drawn is 2; the CQ has it, and with it this slot.
    let page = Page(Rc::clone(slot), doorbell::slot(QueueKind::Completion, 2));
    let mut engine = Engine::new(CONFIG, Counting(1));
    assert!(engine.open_page(1, page));
    let mut card = Card { engine, memory: memory.clone(), lower: Nothing, commands: 0 };
    for (register, value) in [
        (window::ADMIN_SQ_BASE, ADMIN_SQ),
        (window::ADMIN_SQ_SIZE, 6),
        (window::ADMIN_CQ_BASE, ADMIN_CQ),
        (window::ADMIN_CQ_SIZE, 6),
        (window::EVENT_BASE, EVENTS),
        (window::EVENT_SIZE, 4),
        (window::CONTROL, window::CONTROL_ENABLE),
    ] {
        card.write(register, value);
    }
    card.command(Opcode::SetGid, &SetGid { index: 0, valid: 1, vlan: 0, gid: [1; 16] }.encode());
    let cqn = card.command(
        Opcode::CreateCq,
        &CreateCq { ring: CQ, log2_entries: 2, page: 1, vector: 0 }.encode(),
    );
    assert_eq!(cqn, 2);
    let rq = CreateRq { ring: RQ, log2_entries: 2, page: 1, pdn: 1, ..CreateRq::default() };
    let rqn = card.command(Opcode::CreateRq, &rq.encode());
    let qp = CreateQp {
        sq_ring: SQ,
        log2_sq_blocks: 2,
        page: 1,
        kind: QpType::Rc,
        pdn: 1,
        send_cqn: cqn,
        receive_cqn: cqn,
        rqn,
        xrcdn: 0,
    };
    let qpn = card.command(Opcode::CreateQp, &qp.encode());
    use AttributeMask as M;
    let mask = M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS;
    let init = Attributes { mask, state: QpState::Init, port: 1, ..Attributes::default() };
    let [first, second] = init.encode();
    card.command(Opcode::ModifyQp, &[ModifyQp { qpn }.encode()[0], first, second]);
    // One receive request, whose flush is the completion.
    card.memory.store(RQ, &[1, 0, 0, 0, 0, 0, 0, 0]);
    (card, qpn)
}

/// For the engine, whose frames are large where nothing is optimised: loom's own stacks are small.
const STACK: usize = 1 << 20;

fn event_is_never_lost(record_first: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let card = loom::thread::Builder::new().stack_size(STACK);
        card.spawn(move || arm_while_it_completes(record_first)).unwrap().join().unwrap();
    });
}

fn arm_while_it_completes(record_first: bool) {
    let arm = Rc::new(AtomicU64::new(0));
    let slot = Rc::new(AtomicU64::new(0));
    let memory = Memory { words: Rc::default(), arm: Rc::clone(&arm) };
    let (mut card, qpn) = card(&memory, &slot);
    let armed = Arm { consumer: 0, kind: ArmKind::Any, sequence: 1 }.encode();
    // A program that found the queue empty, arms it for later completions, and will wait.
    let program = loom::thread::spawn(move || {
        if record_first {
            arm.store(armed, Ordering::Release);
            slot.store(1, Ordering::Release);
        } else {
            slot.store(1, Ordering::Release);
            arm.store(armed, Ordering::Release);
        }
    });
    // The card looks at its doorbells before and after the completion arrives.
    card.engine.poll(2, &mut card.lower);
    card.engine.handle(3, TransportEvent::Error { qpn }, &mut card.lower);
    while card.engine.poll(4, &mut card.lower) {}
    program.join().unwrap();
    while card.engine.poll(5, &mut card.lower) {}
    assert_eq!(card.fired(), 1, "a lost event");
}

#[test]
fn a_completion_that_crosses_the_arming_fires_exactly_one_event() {
    event_is_never_lost(true);
}

#[test]
#[should_panic(expected = "a lost event")]
fn a_doorbell_before_its_record_would_lose_the_event() {
    event_is_never_lost(false);
}
