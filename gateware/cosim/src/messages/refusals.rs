//! Bad commands, entries and doorbells, each wrong in one thing: a row of the contract's tables, and the status that it has
//! there. Behind all of them the engine carries data.

use fpga_regs::Block;
use fpga_regs::engine::admin::{
    AdminStatus, Completion, CreateCq, CreateKey, CreateQp, CreateRq, Destroy, Header, KeyKind,
    MAX_VLAN, ModifyKey, ModifyQp, Opcode, ResizeCq, RqKind, SetGid,
};
use fpga_regs::engine::cqe::Status;
use fpga_regs::engine::doorbell::{QueueKind, SLOTS, SlotValue, slot};
use fpga_regs::engine::key::Access;
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState, QpType};
use fpga_regs::engine::window::{self, Capabilities};
use fpga_regs::engine::wqe::{
    MAX_INLINE, SEND_PAYLOAD_OFFSET, SendFlags, SendHeader, SendOpcode, Sge,
};

use super::{
    MessageError, NO_READS, REGION, STATES, Test, answer, blocks_of, bytes_of, connect, create_rq,
    gid_of, send_entry, settle, until, wrong,
};
use crate::bus::Config;
use crate::coverage::{Coverage, Ended, When};
use crate::ffi::Library;
use crate::host::{PAGE, PDN, RIGHTS, slot_of};
use crate::pair::COUNTERS;

/// The first address that no engine reaches.
const BEYOND: u64 = 1 << 44;
/// The limits of the engine, of queues' sizes as logarithms.
const LOG2_CQ: u8 = 12;
const LOG2_QUEUE: u8 = 10;
/// The longest message.
pub(super) const MAX_MESSAGE: u32 = 1 << 30;
/// A number that no object has.
const NOBODY: u32 = 1;
/// A seed whose queue pairs may READ, and one whose first may not; of neither they share a receive queue.
const SEEDS: [u64; 2] = [11, 20 + NO_READS];

/// How often of 256 times the driver takes no answer of the registers, and shows nothing new.
const LAZY: u8 = 150;
/// Reads of registers.
const READS: usize = 20;

/// What was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Commands.
    pub commands: usize,
    /// Entries of send queues.
    pub entries: usize,
    /// Requests that each operation fails by, beside these.
    pub failures: usize,
    /// Doorbells.
    pub doorbells: usize,
    /// The ends of work requests.
    pub coverage: Coverage,
    /// What the engine offers.
    pub capabilities: Capabilities,
}

/// Tries all of them.
///
/// # Errors
/// [`MessageError`] at the first that ends in another way.
pub fn run(library: &Library) -> Result<Refused, MessageError> {
    let mut refused = Refused::default();
    let connected = |seed| {
        let mut test = Test::connected(library, &Config { seed, ..Config::default() }, false)?;
        test.pair.hosts.iter_mut().for_each(|host| host.vfpga.be_lazy(LAZY));
        Ok::<_, MessageError>(test)
    };
    let mut test = connected(SEEDS[0])?;
    refused.commands = test.commands()?;
    for entry in test.entries() {
        test.fails(&entry)?;
        refused.entries += 1;
    }
    refused.doorbells = test.doorbells()?;
    test.batch()?;
    test.ends()?;
    refused.failures = test.errors()?;
    refused.capabilities = Capabilities::from_bits_retain(test.register(0, window::CAPABILITIES)?);
    refused.coverage.merge(&test.seen.coverage);
    let mut test = connected(SEEDS[1])?;
    let entry = Entry::new("a READ of a QP that has none", Status::LocalQpOperation, {
        let read = SendHeader { opcode: SendOpcode::Read, ..test.good() };
        send_entry(read, &[test.element(8)])
    });
    test.fails(&entry)?;
    refused.entries += 1;
    refused.coverage.merge(&test.seen.coverage);
    Ok(refused)
}

/// A command that is wrong in one thing.
struct Command {
    what: &'static str,
    opcode: Opcode,
    blocks: Vec<Block>,
    response: u64,
    status: AdminStatus,
}

impl Command {
    fn new<const N: usize>(
        what: &'static str,
        opcode: Opcode,
        blocks: [Block; N],
        status: AdminStatus,
    ) -> Self {
        Self { what, opcode, blocks: blocks.to_vec(), response: 0, status }
    }

    fn named(what: &'static str, opcode: Opcode, number: u32, status: AdminStatus) -> Self {
        Self::new(what, opcode, Destroy { number }.encode(), status)
    }
}

/// An entry that is wrong in one thing.
struct Entry {
    what: &'static str,
    blocks: Vec<Block>,
    status: Status,
    /// Whether it says where the one behind it begins.
    has_end: bool,
}

impl Entry {
    fn new(what: &'static str, status: Status, blocks: Vec<Block>) -> Self {
        Self { what, blocks, status, has_end: true }
    }
}

impl Test {
    // ---- Commands

    /// Tries all bad commands on one card, and answers how many.
    fn commands(&mut self) -> Result<usize, MessageError> {
        let mut count = self.headers()?;
        let hole = self.pair.hosts[0].allocate(64) + 4096;
        let spare = create_rq(&mut self.pair, 0, 0, RqKind::Private)?.rqn;
        let mut rows = Self::queues(hole, self.sides[0].cq.cqn, self.sides[0].rq.rqn, spare);
        rows.extend(self.named());
        rows.extend(self.keys());
        rows.extend(self.changes());
        rows.extend(self.responses(hole));
        rows.extend(self.not_offered()?);
        count += rows.len();
        for Command { what, opcode, blocks, response, status } in rows {
            self.pair.hosts[0].command(opcode, &blocks, response);
            self.is_answered(what, opcode, status)?;
        }
        Ok(count)
    }

    fn is_answered(
        &mut self,
        what: &'static str,
        opcode: Opcode,
        status: AdminStatus,
    ) -> Result<(), MessageError> {
        let completion = until(&mut self.pair, what, |pair| pair.hosts[0].answer())?;
        let Completion { result, generation, .. } = completion;
        let is_so = (completion.opcode, completion.status) == (opcode, status);
        let says_nothing = result == 0 && (generation == 0 || opcode == Opcode::ModifyQp);
        if is_so && says_nothing { Ok(()) } else { wrong(what, (status, completion)) }
    }

    /// Headers that say too little or too much of themselves.
    fn headers(&mut self) -> Result<usize, MessageError> {
        let header = |blocks| {
            let [block] = Header { opcode: Opcode::QueryQp, blocks, tag: 1, response: 0 }.encode();
            block
        };
        for blocks in [0, 5, u8::MAX] {
            self.pair.hosts[0].command_of(&[header(blocks)]);
            self.is_answered("the blocks of a command", Opcode::QueryQp, AdminStatus::Invalid)?;
        }
        // A command whose blocks are not all there waits for the rest.
        let [head] = ModifyQp { qpn: NOBODY }.encode();
        let [first, second] = Attributes::default().encode();
        let [whole] = Header { opcode: Opcode::ModifyQp, blocks: 3, tag: 2, response: 0 }.encode();
        let head: Block = std::array::from_fn(|word| head[word] | whole[word]);
        self.pair.hosts[0].command_of(&[head]);
        settle(&mut self.pair, "the wait for the rest of a command")?;
        if let Some(completion) = self.pair.hosts[0].answer() {
            return wrong("an answer before the command is there", completion);
        }
        self.pair.hosts[0].command_of(&[first, second]);
        self.is_answered("a command in parts", Opcode::ModifyQp, AdminStatus::NotFound)?;
        Ok(4)
    }

    /// New queues: the page before `hole` is memory, that is not; the completion queue and the receive queue are those of a
    /// queue pair, the spare one is nobody's.
    fn queues(hole: u64, cqn: u32, rqn: u32, spare: u32) -> Vec<Command> {
        use AdminStatus as S;
        let ring = hole - 4096;
        let cq = CreateCq { ring, log2_entries: 2, page: PAGE, vector: 0 };
        let rq = CreateRq { ring, log2_entries: 2, page: PAGE, pdn: PDN, ..CreateRq::default() };
        let qp = CreateQp {
            sq_ring: ring,
            log2_sq_blocks: 2,
            page: PAGE,
            kind: QpType::Rc,
            pdn: PDN,
            send_cqn: cqn,
            receive_cqn: cqn,
            rqn,
            xrcdn: 0,
        };
        let row = Command::new;
        let new_cq = |what, cq: CreateCq, status| row(what, Opcode::CreateCq, cq.encode(), status);
        let new_rq = |what, rq: CreateRq, status| row(what, Opcode::CreateRq, rq.encode(), status);
        let new_qp = |what, qp: CreateQp, status| row(what, Opcode::CreateQp, qp.encode(), status);
        let moved = ResizeCq { ring, log2_entries: 2, cqn };
        let move_cq = |what, cq: ResizeCq, status| row(what, Opcode::ResizeCq, cq.encode(), status);
        let mut rows = vec![
            new_cq("a large CQ", CreateCq { log2_entries: LOG2_CQ + 1, ..cq }, S::Invalid),
            new_cq("a CQ without a page", CreateCq { page: 0, ..cq }, S::Invalid),
            new_cq("a vector without a ring", CreateCq { vector: 1, ..cq }, S::Invalid),
            move_cq("a move to much", ResizeCq { log2_entries: LOG2_CQ + 1, ..moved }, S::Invalid),
            move_cq("a move of no CQ", ResizeCq { cqn: NOBODY, ..moved }, S::NotFound),
            move_cq("a move of another CQ", ResizeCq { cqn: cqn ^ 1 << 7, ..moved }, S::NotFound),
            move_cq("the upper bits of it", ResizeCq { cqn: cqn | 1 << 24, ..moved }, S::NotFound),
            new_rq("a large RQ", CreateRq { log2_entries: LOG2_QUEUE + 1, ..rq }, S::Invalid),
            new_rq("a large stride", CreateRq { log2_stride: 4, ..rq }, S::Invalid),
            new_rq("an RQ without a page", CreateRq { page: 0, ..rq }, S::Invalid),
            new_qp("a large QP", CreateQp { log2_sq_blocks: LOG2_QUEUE + 1, ..qp }, S::Invalid),
            new_qp("a QP without a page", CreateQp { page: 0, ..qp }, S::Invalid),
            new_qp("no CQ of sends", CreateQp { send_cqn: NOBODY, ..qp }, S::NotFound),
            new_qp("no CQ of receives", CreateQp { receive_cqn: NOBODY, ..qp }, S::NotFound),
            new_qp("a CQ's upper bits", CreateQp { send_cqn: cqn | 1 << 24, ..qp }, S::NotFound),
            new_qp("no RQ", CreateQp { rqn: NOBODY, ..qp }, S::NotFound),
            new_qp("a receive queue of another", qp, S::Busy),
            // Behind its record a page's ring has its last block in the next page.
            new_cq("the end of a CQ", CreateCq { log2_entries: 6, ..cq }, S::BadAddress),
            move_cq("the next end of a CQ", ResizeCq { log2_entries: 6, ..moved }, S::BadAddress),
            new_rq("the end of an RQ", CreateRq { log2_entries: 6, ..rq }, S::BadAddress),
            new_qp(
                "the end of a send ring",
                CreateQp { log2_sq_blocks: 6, rqn: spare, ..qp },
                S::BadAddress,
            ),
        ];
        let strides = CreateRq { log2_entries: 4, log2_stride: 2, ..rq };
        rows.push(new_rq("the end of an RQ of wide entries", strides, S::BadAddress));
        for (ring, status) in [
            (ring + 8, S::Invalid),
            (hole, S::BadAddress),
            (BEYOND, S::BadAddress),
            (BEYOND | ring, S::BadAddress),
            (u64::MAX - 63, S::BadAddress),
        ] {
            rows.push(new_cq("the ring of a CQ", CreateCq { ring, ..cq }, status));
            rows.push(move_cq("the next ring of a CQ", ResizeCq { ring, ..moved }, status));
            rows.push(new_rq("the ring of an RQ", CreateRq { ring, ..rq }, status));
        }
        rows
    }

    /// Objects that are not there, or are in use.
    fn named(&self) -> Vec<Command> {
        use AdminStatus as S;
        let [side, _] = &self.sides;
        let (cqn, rqn, qpn) = (side.cq.cqn, side.rq.rqn, side.qp.qpn);
        let row = Command::named;
        let mut rows = vec![
            row("a CQ in use", Opcode::DestroyCq, cqn, S::Busy),
            row("an RQ in use", Opcode::DestroyRq, rqn, S::Busy),
        ];
        for (opcode, number) in [
            (Opcode::DestroyCq, cqn),
            (Opcode::DestroyRq, rqn),
            (Opcode::DestroyQp, qpn),
            (Opcode::QueryQp, qpn),
        ] {
            rows.push(row("no object", opcode, NOBODY, S::NotFound));
            rows.push(row("another number", opcode, number ^ 1 << 7, S::NotFound));
            rows.push(row("the upper bits of a number", opcode, number | 1 << 24, S::NotFound));
        }
        rows
    }

    /// Regions that cannot be, and keys that are not there.
    fn keys(&self) -> Vec<Command> {
        use AdminStatus as S;
        let region = self.sides[0].region;
        let (va, length) = (region.address, 4096);
        let good =
            CreateKey { va, length, iova: va, pdn: PDN, access: RIGHTS, ..CreateKey::default() };
        let mut rows = Vec::new();
        for (what, bad, status) in [
            ("peers that write", CreateKey { access: Access::REMOTE_WRITE, ..good }, S::Invalid),
            ("peers that add", CreateKey { access: Access::REMOTE_ATOMIC, ..good }, S::Invalid),
            ("a range that wraps", CreateKey { va: u64::MAX - 4094, ..good }, S::Invalid),
            ("memory beyond", CreateKey { iova: BEYOND - 4095, ..good }, S::BadAddress),
            ("memory far beyond", CreateKey { iova: u64::MAX - 4095, ..good }, S::BadAddress),
            ("a long region", CreateKey { va: 0, length: BEYOND + 1, ..good }, S::BadAddress),
        ] {
            rows.push(Command::new(what, Opcode::CreateKey, bad.encode(), status));
            let CreateKey { va, length, iova, pdn, access, .. } = bad;
            let bad = ModifyKey { va, length, iova, pdn, access, key: region.key };
            rows.push(Command::new(what, Opcode::ModifyKey, bad.encode(), status));
        }
        for key in [NOBODY, region.key ^ 1, region.key ^ 1 << 31] {
            let CreateKey { va, length, iova, pdn, access, .. } = good;
            let none = ModifyKey { va, length, iova, pdn, access, key };
            rows.push(Command::new("no key", Opcode::ModifyKey, none.encode(), S::NotFound));
            rows.push(Command::named("no key", Opcode::DestroyKey, key, S::NotFound));
        }
        for (what, index, vlan) in [("a GID's index", 16, 0), ("a VLAN", 1, MAX_VLAN + 1)] {
            let gid = SetGid { index, valid: 1, vlan, gid: gid_of(0) };
            rows.push(Command::new(what, Opcode::SetGid, gid.encode(), S::Invalid));
        }
        rows
    }

    /// Changes of the queue pair, which is in RTS.
    fn changes(&self) -> Vec<Command> {
        use AdminStatus as S;
        use AttributeMask as M;
        let qpn = self.sides[0].qp.qpn;
        let to = |mask, state| Attributes { mask: mask | M::STATE, state, ..Attributes::default() };
        let change = |what, qpn, attributes: Attributes, status| {
            let [head] = ModifyQp { qpn }.encode();
            let [first, second] = attributes.encode();
            Command::new(what, Opcode::ModifyQp, [head, first, second], status)
        };
        let stay = |mask| to(mask, QpState::Rts);
        let believed = Attributes { current_state: QpState::Rtr, ..stay(M::CURRENT_STATE) };
        let [head] = ModifyQp { qpn }.encode();
        let [first, _] = stay(M::empty()).encode();
        vec![
            change("no QP", NOBODY, stay(M::empty()), S::NotFound),
            change("a QP's upper bits", qpn | 1 << 24, stay(M::empty()), S::NotFound),
            change("back to INIT", qpn, to(M::empty(), QpState::Init), S::BadState),
            change("back to RTR", qpn, to(M::empty(), QpState::Rtr), S::BadState),
            change("no state", qpn, to(M::empty(), QpState(77)), S::BadState),
            change("another state than believed", qpn, believed, S::BadState),
            change("an attribute too many", qpn, stay(M::PATH_MTU), S::Invalid),
            change("an unknown attribute", qpn, stay(M::from_bits_retain(1 << 31)), S::Invalid),
            change(
                "an RNR timer",
                qpn,
                Attributes { min_rnr_timer: 32, ..stay(M::MIN_RNR_TIMER) },
                S::Invalid,
            ),
            change(
                "rights that are none",
                qpn,
                Attributes { access: 1 << 31, ..stay(M::ACCESS) },
                S::Invalid,
            ),
            Command::new("one block of three", Opcode::ModifyQp, [head], S::Invalid),
            Command::new("two blocks of three", Opcode::ModifyQp, [head, first], S::Invalid),
        ]
    }

    /// Places of answers that cannot be.
    fn responses(&self, hole: u64) -> Vec<Command> {
        use AdminStatus as S;
        let number = self.sides[0].qp.qpn;
        let mut rows = Vec::new();
        for (response, status) in [
            (0, S::Invalid),
            (hole - 4096 + 8, S::Invalid),
            (hole, S::BadAddress),
            (BEYOND, S::BadAddress),
            (BEYOND | (hole - 4096), S::BadAddress),
            (u64::MAX - 63, S::BadAddress),
        ] {
            for opcode in [Opcode::QueryQp, Opcode::QueryPort, Opcode::QueryCounters] {
                let row = Command::named("the place of an answer", opcode, number, status);
                rows.push(Command { response, ..row });
            }
        }
        // The counters take so many blocks, and no more.
        let blocks = COUNTERS.len().div_ceil(8) as u64;
        for (blocks, status) in [(blocks - 1, S::BadAddress), (blocks, S::Success)] {
            let response = hole - 64 * blocks;
            let row = Command::named("the room of counters", Opcode::QueryCounters, 0, status);
            rows.push(Command { response, ..row });
        }
        rows
    }

    /// Commands that the capability words do not grant, or nobody knows.
    fn not_offered(&mut self) -> Result<Vec<Command>, MessageError> {
        use Capabilities as C;
        let offered = C::from_bits_retain(self.register(0, window::CAPABILITIES)?);
        let ring = self.pair.hosts[0].allocate(64);
        let mut all = vec![(C::all(), Opcode(0)), (C::all(), Opcode(200))];
        all.extend([
            (C::RESIZE_CQ, Opcode::ResizeCq),
            (C::SRQ, Opcode::ModifyRq),
            (C::UD, Opcode::CreateAh),
            (C::UD, Opcode::DestroyAh),
            (C::UD, Opcode::QueryAh),
            (C::DEVICE_MEMORY, Opcode::AllocDm),
            (C::DEVICE_MEMORY, Opcode::FreeDm),
            (C::DEVICE_MEMORY, Opcode::CopyDm),
            (C::MODERATION, Opcode::ModerateCq),
            (C::MULTICAST, Opcode::AttachMulticast),
            (C::MULTICAST, Opcode::DetachMulticast),
        ]);
        let refused = AdminStatus::Unsupported;
        let mut rows: Vec<_> = all
            .into_iter()
            .map(|(needs, opcode)| {
                (needs, Command::new("no such command", opcode, [[0; 8]], refused))
            })
            .collect();
        for (needs, kind) in [
            (C::GSI, QpType::Gsi),
            (C::UC, QpType::Uc),
            (C::UD, QpType::Ud),
            (C::XRC, QpType::XrcSend),
            (C::XRC, QpType::XrcReceive),
            (C::all(), QpType(77)),
        ] {
            let qp = CreateQp { sq_ring: ring, page: PAGE, kind, ..CreateQp::default() };
            rows.push((needs, Command::new("a QP's type", Opcode::CreateQp, qp.encode(), refused)));
        }
        for (needs, kind) in [(C::SRQ, RqKind::Shared), (C::XRC, RqKind::Xrc)] {
            let rq = CreateRq { ring, page: PAGE, kind, ..CreateRq::default() };
            rows.push((
                needs,
                Command::new("an RQ's kind", Opcode::CreateRq, rq.encode(), refused),
            ));
        }
        for (needs, kind) in [
            (C::MEMORY_WINDOW, KeyKind::Window1),
            (C::MEMORY_WINDOW, KeyKind::Window2),
            (C::DEVICE_MEMORY, KeyKind::DeviceMemory),
            (C::NULL_MR, KeyKind::Null),
        ] {
            let key = CreateKey { pdn: PDN, kind, ..CreateKey::default() };
            rows.push((
                needs,
                Command::new("a key's kind", Opcode::CreateKey, key.encode(), refused),
            ));
        }
        Ok(rows.into_iter().filter(|(needs, _)| !offered.contains(*needs)).map(|it| it.1).collect())
    }

    // ---- Entries

    /// The header of a WRITE that is well.
    fn good(&self) -> SendHeader {
        let peer = self.sides[1].region;
        SendHeader {
            opcode: SendOpcode::Write,
            remote_address: peer.address,
            rkey: peer.key,
            blocks: 1,
            ..SendHeader::default()
        }
    }

    /// An element of the first side's region.
    fn element(&self, length: u32) -> Sge {
        let region = self.sides[0].region;
        Sge { address: region.address, length, lkey: region.key }
    }

    /// All bad entries, in the order of the contract's table.
    fn entries(&self) -> Vec<Entry> {
        use SendFlags as F;
        use Status as S;
        let (good, one) = (self.good(), [self.element(8)]);
        let bytes = bytes_of(&one);
        // The header says of itself what it likes.
        let raw = |header: SendHeader, payload: &[u8]| {
            blocks_of(&header.encode(), SEND_PAYLOAD_OFFSET, payload)
        };
        let unsound = |what, blocks| Entry {
            has_end: false,
            ..Entry::new(
                what,
                S::LocalQpOperation,
                raw(SendHeader { blocks, num_sge: 1, ..good }, &bytes),
            )
        };
        let mut all = vec![
            unsound("no blocks", 0),
            unsound("6 blocks", 6),
            unsound("255 blocks", 255),
            unsound("more blocks than are posted", 2),
        ];
        for opcode in [0, 3, 7, 8, 9, 10, 11, 200].map(SendOpcode) {
            let header = SendHeader { opcode, num_sge: 1, ..good };
            all.push(Entry::new("an operation", S::LocalQpOperation, raw(header, &bytes)));
        }
        let inline = SendHeader { flags: F::INLINE, inline_length: 16, ..good };
        let most = MAX_INLINE as u32;
        for (what, header) in [
            ("inline data and an element", SendHeader { num_sge: 1, ..inline }),
            ("inline data of a READ", SendHeader { opcode: SendOpcode::Read, ..inline }),
            ("inline data behind the entry", SendHeader { inline_length: 33, ..inline }),
            ("endless inline data", SendHeader { inline_length: u32::MAX, ..inline }),
        ] {
            all.push(Entry::new(what, S::LocalQpOperation, raw(header, &[7; 32])));
        }
        let long = SendHeader { inline_length: most + 1, blocks: 5, ..inline };
        all.push(Entry::new("much inline data", S::LocalQpOperation, raw(long, &[7; 288])));
        for (what, num_sge, blocks) in [
            ("17 elements", 17, 5),
            ("255 elements", 255, 5),
            ("elements behind the entry", 3, 1),
            ("16 elements in 4 blocks", 16, 4),
        ] {
            let header = SendHeader { num_sge, blocks, ..good };
            let payload = bytes.repeat(4 * usize::from(blocks) - 2);
            all.push(Entry::new(what, S::LocalQpOperation, raw(header, &payload)));
        }
        // Also where no element is well.
        for (what, elements) in [
            ("a long message", vec![Sge { length: MAX_MESSAGE + 1, ..one[0] }]),
            ("a message of many long elements", vec![Sge { length: u32::MAX, ..one[0] }; 16]),
            (
                "a long message of two elements",
                vec![Sge { length: MAX_MESSAGE / 2 + 1, lkey: 0, ..one[0] }; 2],
            ),
        ] {
            all.push(Entry::new(what, S::LocalLength, send_entry(good, &elements)));
        }
        all.extend(self.unprotected());
        all
    }

    /// Elements that a key does not grant.
    fn unprotected(&self) -> Vec<Entry> {
        let (good, one) = (self.good(), self.element(8));
        let Sge { address, lkey, .. } = one;
        let read = SendHeader { opcode: SendOpcode::Read, ..good };
        let readable = self.sides[0].readable;
        let mut all = Vec::new();
        for (what, header, bad) in [
            ("no key", good, Sge { lkey: 0, ..one }),
            ("another variant", good, Sge { lkey: lkey ^ 1, ..one }),
            ("another key", good, Sge { lkey: lkey ^ 1 << 31, ..one }),
            ("a peer's key", good, Sge { lkey: self.sides[1].region.key, ..one }),
            ("a byte before", good, Sge { address: address - 1, ..one }),
            ("a byte behind", good, Sge { address: address + REGION - 7, ..one }),
            ("all behind", good, Sge { address: address + REGION, length: 1, ..one }),
            ("a range that wraps", good, Sge { address: u64::MAX - 3, ..one }),
            (
                "no right to write",
                read,
                Sge { address: readable.address, lkey: readable.key, length: 8 },
            ),
        ] {
            // It is the only one, or the last of some.
            let fine = Sge { length: 3, ..one };
            for elements in [vec![bad], vec![fine, fine, fine, fine, bad]] {
                all.push(Entry::new(what, Status::LocalProtection, send_entry(header, &elements)));
            }
        }
        all
    }

    /// Posts a good entry, the bad one, and another good one: the first completes well, the second as it has to, the third
    /// is flushed. Then both queue pairs are connected anew.
    fn fails(&mut self, bad: &Entry) -> Result<(), MessageError> {
        // An element without bytes is not looked at.
        let nothing = Sge { length: 0, lkey: 0, address: u64::MAX };
        let good = SendHeader { flags: SendFlags::SIGNALED, ..self.good() };
        let good = send_entry(good, &[self.element(5), nothing]);
        let first = self.sides[0].qp.index();
        let [request, opcode] =
            [&good, &bad.blocks].map(|blocks| Ended::Request(blocks[0][0] as u8));
        let mut wanted = vec![
            (request, first, Status::Success),
            (opcode, first + good.len() as u32, bad.status),
        ];
        let behind = first + (good.len() + bad.blocks.len()) as u32;
        let host = &mut self.pair.hosts[0];
        let qp = &mut self.sides[0].qp;
        host.put(qp, &good);
        host.put(qp, &bad.blocks);
        if bad.has_end {
            host.put(qp, &good);
            wanted.push((request, behind, Status::Flushed));
        }
        host.ring_send(qp);
        for (ended, index, status) in wanted {
            let entry = self.completion(0)?;
            if (entry.wqe_index, entry.status) != (index, status) {
                return wrong(bad.what, (index, status, entry));
            }
            self.note(ended, status);
        }
        self.ends()?;
        let refusal = self.refusal;
        connect(&mut self.pair, &mut self.sides, refusal, &STATES)?;
        self.when = When::Again;
        Ok(())
    }

    // ---- Doorbells

    /// Doorbells that ring for nobody, of which nothing comes: an entry that is posted without a doorbell stays where it is.
    fn doorbells(&mut self) -> Result<usize, MessageError> {
        let entry = SendHeader { flags: SendFlags::SIGNALED, ..self.good() };
        let entry = send_entry(entry, &[self.element(5)]);
        let (qpn, cqn) = (self.sides[0].qp.qpn, self.sides[0].cq.cqn);
        let generation = self.sides[0].qp.generation();
        let index = self.sides[0].qp.index();
        self.pair.hosts[0].put(&mut self.sides[0].qp, &entry);
        let value = SlotValue { index: index + 1, number: qpn, generation }.encode();
        let own = slot(QueueKind::Send, qpn);
        let ignored = self.ignored()?;
        let (mut count, mut rung) = (0, 0);
        // Slots of others, reserved ones, and the same slot of another client's page.
        let others = [QueueKind::Send, QueueKind::Receive, QueueKind::Completion];
        let others = others.map(|kind| slot(kind, qpn.max(cqn) ^ 64 ^ 1));
        let reserved = [SLOTS - 128 + (own & 127), SLOTS - 1];
        let slots = others.into_iter().filter(|it| *it != own).chain(reserved).map(|it| (PAGE, it));
        for (page, slot) in slots.chain([(PAGE + 1, own), (window::RELAY_PAGE, own)]) {
            self.pair.hosts[0].vfpga.write(slot_of(page, slot), value);
            self.comes_nothing("a doorbell for nobody")?;
            count += 1;
            rung += u32::from(!reserved.contains(&slot));
        }
        // Its own slot, but not all of it; the first register of the window is none to write.
        for strobes in [0x00, 0x0f, 0xf0, 0x7f, 0xfe] {
            self.pair.hosts[0].vfpga.write_bytes(slot_of(PAGE, own), value, strobes);
            let producer = window::ADMIN_DOORBELL as u16;
            self.pair.hosts[0].vfpga.write_bytes(producer, u64::MAX, strobes);
            self.pair.hosts[0].vfpga.write_bytes(window::CONTROL as u16, u64::MAX, strobes);
            self.comes_nothing("a doorbell in part")?;
            count += 3;
        }
        // None of a queue is left out, and no other is told.
        let seen = self.ignored()?;
        let grown = [seen.stores - ignored.stores, seen.doorbells - ignored.doorbells];
        if grown != [count as u32 - rung, rung] {
            return wrong("the stores that were ignored", (grown, count, rung));
        }
        // A producer index further ahead than the ring.
        for ahead in [0x8000_0000, u64::from(u32::MAX)] {
            self.pair.hosts[0].vfpga.write(window::ADMIN_DOORBELL as u16, ahead);
            self.comes_nothing("commands beyond the ring")?;
            count += 1;
        }
        // The slot is a hint, the record the truth: a value of another time brings what is posted, and once.
        let stale = SlotValue { index: 77, number: qpn ^ 1 << 7, generation: generation ^ 1 };
        self.pair.hosts[0].vfpga.write(slot_of(PAGE, own), stale.encode());
        let completion = self.completion(0)?;
        if (completion.wqe_index, completion.status) != (index, Status::Success) {
            return wrong("a doorbell of another time", completion);
        }
        self.ends()?;
        self.pair.hosts[0].set_gid(gid_of(0));
        answer(&mut self.pair, 0, Opcode::SetGid)?;
        self.registers()?;
        Ok(count + 1)
    }

    /// The stores that the engine has ignored.
    fn ignored(&mut self) -> Result<window::Ignored, MessageError> {
        self.register(0, window::IGNORED).map(window::Ignored::decode)
    }

    /// Registers that are read one by one.
    fn registers(&mut self) -> Result<(), MessageError> {
        let some = [(window::MAGIC, window::MAGIC_VALUE), (window::ADMIN_DOORBELL, 0)];
        for (register, wanted) in some.into_iter().cycle().take(READS) {
            let value = self.register(0, register)?;
            if value != wanted {
                return wrong("a register", (register, value));
            }
        }
        Ok(())
    }

    /// Nothing is read of the rings, and nothing comes.
    fn comes_nothing(&mut self, what: &'static str) -> Result<(), MessageError> {
        let before = self.pair.hosts[0].vfpga.bus().counts().bytes_read;
        settle(&mut self.pair, what)?;
        let after = self.pair.hosts[0].vfpga.bus().counts().bytes_read;
        if after != before {
            return wrong(what, after - before);
        }
        self.ends()
    }
}
