//! Worked examples: bytes that the crate's own encoders make.

use std::fmt::Write as _;

use fpga_regs::Block;
use fpga_regs::coyote::vfpga;
use fpga_regs::engine::admin::{self, AdminStatus, CreateCq, Header};
use fpga_regs::engine::cqe::{Cqe, Opcode, Status, expected_phase};
use fpga_regs::engine::doorbell::{
    Arm, ArmKind, CompletionRecord, ProducerRecord, QueueKind, slot, slot_value,
};
use fpga_regs::engine::event::{Event, EventType};
use fpga_regs::engine::qp::{AttributeMask, Attributes, QpState};
use fpga_regs::engine::window::PAGE_BYTES;
use fpga_regs::engine::wqe::{SendFlags, SendHeader, SendOpcode, Sge};

/// The queue pair, its queues and its memory in all examples.
const QPN: u32 = 0x0a_1b2c;
const GENERATION: u8 = 0x5e;
const CQN: u32 = 0x3c_4d5e;
const PAGE: u8 = 1;
const LOG2_ENTRIES: u8 = 8;

const WRITE: SendHeader = SendHeader {
    opcode: SendOpcode::Write,
    flags: SendFlags::SIGNALED,
    num_sge: 1,
    blocks: 1,
    inline_length: 0,
    immediate: 0,
    remote_srqn: 0,
    remote_address: 0x7fa0_1122_3000,
    rkey: 0x9876_54aa,
};

const SGE: Sge = Sge { address: 0x7f12_3400_0040, length: 4096, lkey: 0x1234_5678 };

/// The example with that name.
pub fn example(name: &str) -> Option<String> {
    Some(match name {
        "wqe" => write_wqe(),
        "inline" => inline_wqe(),
        "record" => producer_record(),
        "slot" => slots(),
        "cqe" => completion(),
        "arm" => arming(),
        "event" => event(),
        "create_cq" => create_cq(),
        "modify_qp" => modify_qp(),
        _ => return None,
    })
}

fn fenced(title: &str, lines: &str) -> String {
    format!("{title}\n\n```text\n{lines}```\n")
}

/// Blocks as bytes in memory, 16 a line.
fn dump(blocks: &[Block]) -> String {
    let bytes: Vec<u8> = blocks.as_flattened().iter().flat_map(|it| it.to_le_bytes()).collect();
    let mut out = String::new();
    for (i, line) in bytes.chunks(16).enumerate() {
        let text: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let _ = writeln!(out, "{:02x}: {}", i * 16, text.join(" "));
    }
    out
}

fn write_wqe() -> String {
    let [mut block] = WRITE.encode();
    block[4..6].copy_from_slice(&SGE.encode());
    let title = format!(
        "RDMA WRITE, signaled, of {} bytes from {:#x} (lkey {:#010x}) to {:#x} (rkey {:#010x}); one block at index 0 of the send ring:",
        SGE.length, SGE.address, SGE.lkey, WRITE.remote_address, WRITE.rkey
    );
    fenced(&title, &dump(&[block]))
}

fn inline_wqe() -> String {
    let data: [u8; 40] = std::array::from_fn(|i| i as u8);
    let inline_length = data.len() as u32;
    let header = SendHeader {
        flags: SendFlags::SIGNALED | SendFlags::INLINE,
        num_sge: 0,
        blocks: 2,
        inline_length,
        ..WRITE
    };
    let mut blocks = [header.encode()[0], [0; 8]];
    for (word, bytes) in blocks.as_flattened_mut()[4..].iter_mut().zip(data.chunks(8)) {
        *word = u64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
    }
    let title = format!(
        "The same with the {inline_length} bytes 00 to {:02x} inline; two blocks, the second begins at 40:",
        inline_length - 1
    );
    fenced(&title, &dump(&blocks))
}

fn producer_record() -> String {
    let record = ProducerRecord { producer: 1 };
    fenced(
        "The doorbell record of the send queue, after one block was posted:",
        &dump(&record.encode()),
    )
}

fn slots() -> String {
    let index = slot(QueueKind::Send, QPN) as u64;
    let value = slot_value(QPN, GENERATION, 1);
    let address = u64::from(PAGE) * PAGE_BYTES + index * 8;
    let mut lines = String::new();
    let _ = writeln!(lines, "slot          {index} = {QPN:#x} mod 128");
    let _ =
        writeln!(lines, "in the window {address:#06x} = {PAGE} x {PAGE_BYTES:#x} + {index} x 8");
    let _ = writeln!(lines, "in BAR4       {:#010x} for vFPGA 0", vfpga::user_csr(0) + address);
    let _ = writeln!(lines, "value         {value:#018x}");
    let title = format!(
        "The slot of the send queue of QP {QPN:#08x}, generation {GENERATION:#04x}, in doorbell page {PAGE}, producer index 1:"
    );
    fenced(&title, &lines)
}

fn completion() -> String {
    let entry = Cqe {
        qpn: QPN,
        wqe_index: 0,
        byte_count: SGE.length,
        opcode: Opcode::Write,
        status: Status::Success,
        timestamp: 0x0123_4567_89ab,
        generation: GENERATION,
        phase: expected_phase(0, LOG2_ENTRIES).into(),
        ..Cqe::default()
    };
    let title = format!(
        "The completion, the first of a completion ring of 2^{LOG2_ENTRIES} entries, at {:#x} ns:",
        entry.timestamp
    );
    fenced(&title, &dump(&entry.encode()))
}

fn arming() -> String {
    let arm = Arm { consumer: 1, sequence: 7, kind: ArmKind::Any };
    let record = CompletionRecord {
        consumer: 1,
        arm: arm.encode(),
        events_read: 0,
        armed_for_any: arm.sequence,
    };
    let index = slot(QueueKind::Completion, CQN) as u64;
    let mut lines = dump(&record.encode());
    let _ = writeln!(lines, "slot {index}, value {:#018x}", slot_value(CQN, 0, arm.sequence));
    let title = format!(
        "Arming number {} of completion queue {CQN:#08x} for any completion, after the first entry was consumed; its doorbell record and its slot:",
        arm.sequence
    );
    fenced(&title, &lines)
}

fn event() -> String {
    let event = Event {
        kind: EventType::Completion,
        code: 0,
        number: CQN,
        data: 7,
        timestamp: 0x0123_4567_9000,
        phase: expected_phase(0, LOG2_ENTRIES).into(),
    };
    fenced(
        "The event when the next completion comes, the first of the event ring:",
        &dump(&event.encode()),
    )
}

fn create_cq() -> String {
    let command = CreateCq { ring: 0x4020_0000, log2_entries: LOG2_ENTRIES, page: PAGE, vector: 0 };
    let header = Header { opcode: admin::Opcode::CreateCq, blocks: 1, tag: 3, response: 0 };
    let block = with_header(command.encode()[0], header);
    let answer = admin::Completion {
        tag: header.tag,
        opcode: header.opcode,
        status: AdminStatus::Success,
        result: CQN,
        generation: 0,
        phase: 1,
    };
    let title = format!(
        "CreateCq with tag {}: ring memory at {:#x}, 2^{LOG2_ENTRIES} entries, doorbell page {PAGE}:",
        header.tag, command.ring
    );
    let mut out = fenced(&title, &dump(&[block]));
    out.push('\n');
    out.push_str(&fenced(
        &format!("Its answer: completion queue {CQN:#08x}:"),
        &dump(&answer.encode()),
    ));
    out
}

fn with_header(mut block: Block, header: Header) -> Block {
    for (word, head) in block.iter_mut().zip(header.encode()[0]) {
        *word |= head;
    }
    block
}

fn modify_qp() -> String {
    let attributes = Attributes {
        mask: AttributeMask::STATE
            | AttributeMask::TIMEOUT
            | AttributeMask::RETRY_COUNT
            | AttributeMask::RNR_RETRY
            | AttributeMask::SQ_PSN
            | AttributeMask::MAX_RD_ATOMIC,
        state: QpState::Rts,
        timeout: 14,
        retry_count: 7,
        rnr_retry: 7,
        sq_psn: 0x12_3456,
        max_rd_atomic: 1,
        ..Attributes::default()
    };
    let header = Header { opcode: admin::Opcode::ModifyQp, blocks: 3, tag: 9, response: 0 };
    let head = with_header(admin::ModifyQp { qpn: QPN }.encode()[0], header);
    let [first, second] = attributes.encode();
    let title = format!(
        "ModifyQp with tag {} of QP {QPN:#08x} to RTS, sending from PSN {:#x}; three blocks:",
        header.tag, attributes.sq_psn
    );
    fenced(&title, &dump(&[head, first, second]))
}
