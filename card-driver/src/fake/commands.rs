//! The commands to an engine of a card for tests, and their fate.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;

use fpga_regs::Block;
use fpga_regs::coyote::pci::Bar;
use fpga_regs::engine::admin::{AdminStatus, Completion, Destroy, Header, Opcode};
use fpga_regs::engine::cqe;
use fpga_regs::engine::window as w;
use hostmem::{Access, BlockRing, DmaMemory, SharedMapping, memfd};

use crate::backend::CardBackend;
use crate::soft::SoftBackend;

/// The mapped memory, by address, with its number of bytes.
pub(super) type Mappings = BTreeMap<u64, (u64, DmaMemory)>;

/// A test's change of an answer to a command.
type Alter = dyn FnMut(&mut Completion) + Send;

/// A test's view of the commands to an engine.
#[derive(Default)]
pub struct FakeWindow {
    /// Refused ones, which the engine does not see.
    pub refuse: HashMap<Opcode, AdminStatus>,
    /// The answers to queries, in place of the engine's.
    pub answers: HashMap<Opcode, Vec<Block>>,
    /// The change of the answers.
    pub alter: Option<Box<Alter>>,
    /// The executed commands.
    pub log: Vec<Opcode>,
    /// Objects that live, each by the command that made it and its number.
    pub live: BTreeSet<(Opcode, u32)>,
    rings: Option<Rings>,
}

/// An engine's admin rings. Its completions are where the driver does not see them.
struct Rings {
    memory: Arc<SharedMapping>,
    /// Where the memory begins for the card.
    start: u64,
    submissions: BlockRing,
    /// The completions of the engine, and those of the driver.
    completions: [BlockRing; 2],
    /// Entries taken from each, or written.
    submitted: u32,
    completed: [u32; 2],
    /// The first blocks of commands that are not answered.
    under_way: VecDeque<Block>,
}

impl Rings {
    fn expected_phase(&self, end: usize) -> bool {
        let log2 = self.completions[end].blocks().trailing_zeros() as u8;
        cqe::expected_phase(self.completed[end], log2)
    }

    /// Takes the engine's next completion.
    fn take(&mut self) -> Option<Completion> {
        let phase = self.expected_phase(0);
        let block = self.completions[0].block(self.completed[0]);
        let block = block.written(|last| cqe::phase(last) == phase)?.load();
        self.completed[0] += 1;
        Some(Completion::decode(&[block]))
    }

    /// Answers the driver.
    fn complete(&mut self, completion: Completion) {
        let phase = self.expected_phase(1).into();
        let [block] = Completion { phase, ..completion }.encode();
        self.completions[1].write_published(self.completed[1], &block);
        self.completed[1] += 1;
    }
}

impl FakeWindow {
    /// Gives the engine whose window is at `csr` other memory for its completions than the driver's, as
    /// it starts.
    pub(super) fn start(&mut self, card: &SoftBackend, csr: u64, mappings: &Mappings) {
        let register = |register| card.read64(Bar::Shell, csr + register);
        let (base, bytes) = (register(w::ADMIN_CQ_BASE), 64 << register(w::ADMIN_CQ_SIZE));
        let (&start, (length, memory)) = mappings.range(..=base).next_back().unwrap();
        let DmaMemory::Shared { mapping: memory, offset: 0 } = memory else {
            panic!("the rings are in {memory:?}")
        };
        let fd = memfd::create("completions", bytes as usize).unwrap();
        let hidden = SharedMapping::new(fd.as_fd(), 0, bytes as usize, Access::ReadWrite).unwrap();
        let hidden = Arc::new(hidden);
        let behind = base + bytes;
        let pieces = [
            (start, base, memory, 0),
            (base, behind, &hidden, 0),
            (behind, start + length, memory, behind - start),
        ];
        card.dma_unmap(start, *length).unwrap();
        for (start, end, memory, offset) in pieces {
            let memory = DmaMemory::Shared { mapping: Arc::clone(memory), offset };
            card.dma_map(start, end - start, memory).unwrap();
        }
        let ring = |memory, at: u64, log2| {
            BlockRing::new(Arc::clone(memory), at as usize, 1 << register(log2)).unwrap()
        };
        let submissions = ring(memory, register(w::ADMIN_SQ_BASE) - start, w::ADMIN_SQ_SIZE);
        let drivers = ring(memory, base - start, w::ADMIN_CQ_SIZE);
        self.rings = Some(Rings {
            memory: Arc::clone(memory),
            start,
            submissions,
            completions: [ring(&hidden, 0, w::ADMIN_CQ_SIZE), drivers],
            submitted: 0,
            completed: [0; 2],
            under_way: VecDeque::new(),
        });
    }

    /// The engine is reset, and nothing is left in it.
    pub(super) fn stop(&mut self) {
        (self.rings, self.live) = Default::default();
    }

    /// Answers a command that was never given.
    pub fn babble(&mut self) {
        let rings = self.rings.as_mut().expect("an engine that runs");
        rings.complete(Completion { opcode: Opcode::CreateCq, ..Completion::default() });
    }

    /// Notes the commands up to `producer`, and makes those that are refused unknown ones.
    pub(super) fn pass_commands(&mut self, producer: u32) {
        let Some(rings) = &mut self.rings else { return };
        while rings.submitted != producer {
            let block = rings.submissions.read(rings.submitted);
            let header = Header::decode(&[block]);
            if self.refuse.contains_key(&header.opcode) {
                rings.submissions.block(rings.submitted).store(0, block[0] & !0xff);
            }
            rings.submitted += u32::from(header.blocks);
            rings.under_way.push_back(block);
        }
    }

    /// Passes the engine's answers on to the driver.
    pub(super) fn pass_answers(&mut self) {
        use Opcode as O;
        let Some(rings) = &mut self.rings else { return };
        while let Some(mut completion) = rings.take() {
            let command = [rings.under_way.pop_front().expect("a command")];
            let Header { opcode, response, .. } = Header::decode(&command);
            if let Some(status) = self.refuse.get(&opcode) {
                completion = Completion { opcode, status: *status, ..completion };
            }
            if completion.status == AdminStatus::Success {
                self.log.push(opcode);
                let made = [O::CreateCq, O::CreateRq, O::CreateQp, O::CreateKey, O::AllocDm];
                let made_by = match opcode {
                    O::DestroyCq => O::CreateCq,
                    O::DestroyRq => O::CreateRq,
                    O::DestroyQp => O::CreateQp,
                    O::DestroyKey => O::CreateKey,
                    O::FreeDm => O::AllocDm,
                    other => other,
                };
                if made_by != opcode {
                    let named = Destroy::decode(&command).number;
                    assert!(self.live.remove(&(made_by, named)), "{opcode:?} {named:#x}");
                } else if made.contains(&opcode) {
                    self.live.insert((opcode, completion.result));
                }
                let answer = self.answers.get(&opcode).into_iter().flatten().flatten();
                for (at, word) in (response..).step_by(8).zip(answer) {
                    let at = (at - rings.start) as usize;
                    rings.memory.store_relaxed_u64(at, *word).unwrap();
                }
            }
            self.alter.iter_mut().for_each(|alter| alter(&mut completion));
            rings.complete(completion);
        }
    }
}
