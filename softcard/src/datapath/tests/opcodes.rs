//! Every opcode, from the cable through stack and engine into a program's memory and rings.

use fpga_regs::engine::cqe::{Cqe, Flags, Opcode as Completed};
use fpga_regs::engine::event::{EventType, QpEvent};
use fpga_regs::engine::wqe::SendOpcode;
use roce::opcode::code;

use super::rig::{BUFFER_BYTES, BUFFERS, Heard, LOCAL, MTU, RECEIVES, REGION, REGION_BYTES};
use super::rig::{Rig, Say, VA};
use super::*;

/// Immediate data as it stands on the wire.
const WORD: u32 = 0x0102_0304;
/// The bytes of a message's first packet and of its last, and those there before.
const FIRST: u8 = 0x11;
const LAST: u8 = 0x22;
const BEFORE: u8 = 0x77;
/// A word of the memory before, and the one that atomics leave.
const WAS: u64 = u64::from_ne_bytes([BEFORE; 8]);
const AFTER: u64 = 0x8899_aabb_ccdd_eeff;
/// NAKs "invalid request" and "remote access error".
const INVALID_REQUEST: u8 = 0x61;
const REMOTE_ACCESS_ERROR: u8 = 0x62;

fn rig() -> Rig {
    let rig = Rig::new();
    rig.write(REGION, &[BEFORE; REGION_BYTES as usize]);
    rig.write(BUFFERS, &[BEFORE; (BUFFER_BYTES * RECEIVES as u64) as usize]);
    rig
}

/// The packet before one of `opcode` in its message, if there is one.
fn before(opcode: u8) -> Option<Say> {
    let payload = vec![FIRST; MTU];
    match opcode {
        code::SEND_MIDDLE | code::SEND_LAST | code::SEND_LAST_IMM | code::SEND_LAST_INVALIDATE => {
            Some(Say { opcode: code::SEND_FIRST, payload, ..Say::default() })
        }
        code::WRITE_MIDDLE | code::WRITE_LAST | code::WRITE_LAST_IMM => {
            let length = if opcode == code::WRITE_MIDDLE { 3 * MTU } else { MTU + 44 };
            let reth = Some((VA, length as u32));
            Some(Say { opcode: code::WRITE_FIRST, reth, payload, ..Say::default() })
        }
        _ => None,
    }
}

/// A request of `opcode` with the headers that the specification gives it.
fn packet(opcode: u8, psn: u32) -> Say {
    let (word, length) = match opcode {
        code::SEND_FIRST | code::SEND_MIDDLE | code::WRITE_FIRST | code::WRITE_MIDDLE => {
            (None, MTU)
        }
        code::SEND_LAST_IMM | code::SEND_ONLY_IMM | code::WRITE_LAST_IMM => (Some(WORD), 44),
        code::WRITE_ONLY_IMM | code::SEND_LAST_INVALIDATE | code::SEND_ONLY_INVALIDATE => {
            (Some(WORD), 44)
        }
        code::READ_REQUEST | code::COMPARE_SWAP | code::FETCH_ADD => (None, 0),
        _ => (None, 44),
    };
    let reth = match opcode {
        code::WRITE_FIRST | code::READ_REQUEST => Some((VA, 44 + MTU as u32)),
        code::WRITE_ONLY | code::WRITE_ONLY_IMM => Some((VA, 44)),
        _ => None,
    };
    let atomic = match opcode {
        code::COMPARE_SWAP => Some((VA, AFTER, WAS)),
        code::FETCH_ADD => Some((VA, AFTER - WAS, 0)),
        _ => None,
    };
    Say { opcode, psn, reth, atomic, word, payload: vec![LAST; length], ..Say::default() }
}

/// A message up to a packet of `opcode`; that packet's PSN, and the answers to it.
fn say(rig: &mut Rig, opcode: u8) -> (u32, Vec<Heard>) {
    let first = before(opcode);
    let psn = u32::from(first.is_some());
    let says: Vec<Say> = first.into_iter().chain([packet(opcode, psn)]).collect();
    let mut heard = rig.say(&says);
    if psn != 0 {
        let first = heard.remove(0);
        assert_eq!((first.opcode, first.psn), (code::ACKNOWLEDGE, 0));
    }
    (psn, heard)
}

fn assert_untouched(rig: &Rig, address: u64, length: usize) {
    assert!(rig.read(address, length).iter().all(|byte| *byte == BEFORE));
}

/// The completion of a receive, with fields that are not compared taken over from `seen`.
fn received(rig: &Rig, seen: &Cqe, opcode: Completed, bytes: usize, immediate: bool) -> Cqe {
    let flags = if immediate { Flags::RECEIVE | Flags::IMMEDIATE } else { Flags::RECEIVE };
    Cqe {
        qpn: rig.qpn,
        wqe_index: 0,
        byte_count: bytes as u32,
        // As the program finds it in memory: in the order of the wire.
        immediate: if immediate { u32::from_le_bytes(WORD.to_be_bytes()) } else { 0 },
        source_qpn: 0,
        opcode,
        status: Status::Success,
        vendor_code: 0,
        flags,
        ..*seen
    }
}

#[test]
fn every_request_that_is_offered_has_its_whole_effect() {
    let atomics = code::COMPARE_SWAP..=code::FETCH_ADD;
    for opcode in (0..=code::READ_REQUEST).chain(atomics.clone()) {
        let mut rig = rig();
        let (psn, heard) = say(&mut rig, opcode);
        assert_eq!(rig.state(), QpState::Rts, "opcode {opcode:#04x}");
        let is_send = opcode <= code::SEND_ONLY_IMM;
        let is_read = opcode == code::READ_REQUEST;
        let is_atomic = atomics.contains(&opcode);
        let ends = !matches!(opcode, 0x00 | 0x01 | 0x06 | 0x07);
        let has_imm = matches!(opcode, 0x03 | 0x05 | 0x09 | 0x0b);
        // The packets that the peer gets.
        let said: Vec<_> = heard.iter().map(|it| (it.opcode, it.psn, it.aeth.unwrap().1)).collect();
        let payload: Vec<u8> = heard.iter().flat_map(|it| it.payload.clone()).collect();
        if is_read {
            let [first, last] = [code::READ_RESPONSE_FIRST, code::READ_RESPONSE_LAST];
            assert_eq!(said, [(first, psn, 1), (last, psn + 1, 1)]);
            assert_eq!(payload, vec![BEFORE; MTU + 44]);
        } else if is_atomic {
            assert_eq!(said, [(code::ATOMIC_ACKNOWLEDGE, psn, 1)]);
            assert_eq!(payload, WAS.to_be_bytes());
        } else {
            assert_eq!(said, [(code::ACKNOWLEDGE, psn, u32::from(ends))], "opcode {opcode:#04x}");
        }
        // The bytes in memory.
        let begun = if psn == 0 { 0 } else { MTU };
        let last = match is_atomic {
            true => AFTER.to_ne_bytes().to_vec(),
            false => packet(opcode, psn).payload,
        };
        let message = [vec![FIRST; begun], last].concat();
        let [sent, written] = match (is_send, is_read) {
            (true, _) => [message.len(), 0],
            (false, false) => [0, message.len()],
            (false, true) => [0, 0],
        };
        assert_eq!(rig.read(BUFFERS, sent), message[..sent], "opcode {opcode:#04x}");
        assert_untouched(&rig, BUFFERS + sent as u64, BUFFER_BYTES as usize - sent);
        assert_eq!(rig.read(REGION, written), message[..written], "opcode {opcode:#04x}");
        assert_untouched(&rig, REGION + written as u64, REGION_BYTES as usize - written);
        // The program's completions.
        let seen = rig.poll_all();
        let kind = if is_send { Completed::Receive } else { Completed::ReceiveWriteImm };
        assert_eq!(seen.len(), usize::from(ends && (is_send || has_imm)), "opcode {opcode:#04x}");
        for cqe in &seen {
            assert_eq!(*cqe, received(&rig, cqe, kind, message.len(), has_imm));
        }
        assert_eq!(rig.event(), None, "opcode {opcode:#04x}");
    }
}

/// So is a SEND that takes a key back which is no window's.
#[test]
fn every_request_that_is_not_offered_is_refused_and_does_nothing() {
    for opcode in code::FETCH_ADD + 1..0x20 {
        let invalidates =
            [code::SEND_LAST_INVALIDATE, code::SEND_ONLY_INVALIDATE].contains(&opcode);
        let (refusal, why) = match invalidates {
            true => (REMOTE_ACCESS_ERROR, QpEvent::AccessError),
            false => (INVALID_REQUEST, QpEvent::RequestError),
        };
        let mut rig = rig();
        let (psn, heard) = say(&mut rig, opcode);
        let nak =
            Heard { opcode: code::ACKNOWLEDGE, psn, aeth: Some((refusal, 0)), payload: vec![] };
        assert_eq!(heard, [nak], "opcode {opcode:#04x}");
        assert_eq!(rig.state(), QpState::Err, "opcode {opcode:#04x}");
        // Only the packets before have arrived.
        let begun = if psn == 0 { 0 } else { MTU };
        assert_untouched(&rig, BUFFERS + begun as u64, BUFFER_BYTES as usize - begun);
        assert_untouched(&rig, REGION, REGION_BYTES as usize);
        let ended: Vec<_> = rig.poll_all().iter().map(|cqe| (cqe.wqe_index, cqe.status)).collect();
        assert_eq!(ended, [(0, Status::Flushed), (1, Status::Flushed)], "opcode {opcode:#04x}");
        let event = rig.event().unwrap();
        let told = (event.kind, event.code, event.number);
        assert_eq!(told, (EventType::Qp, why.0, rig.qpn));
        assert_eq!(rig.say(&[packet(code::WRITE_ONLY, psn)]), [], "opcode {opcode:#04x}");
        assert_untouched(&rig, REGION, REGION_BYTES as usize);
    }
}

#[test]
fn every_response_that_nobody_asked_for_and_every_other_service_is_dropped_in_silence() {
    let responses = code::READ_RESPONSE_FIRST..=code::ATOMIC_ACKNOWLEDGE;
    for opcode in responses.chain(0x20..=u8::MAX) {
        let mut rig = rig();
        let aeth = (opcode < 0x20 && opcode != code::READ_RESPONSE_MIDDLE).then_some(0x1f);
        let payload = match opcode {
            code::ACKNOWLEDGE => vec![],
            code::ATOMIC_ACKNOWLEDGE => vec![LAST; 8],
            _ => vec![LAST; MTU],
        };
        let heard = rig.say(&[Say { opcode, aeth, payload, ..Say::default() }]);
        assert_eq!(heard, [], "opcode {opcode:#04x}");
        assert_eq!(rig.state(), QpState::Rts, "opcode {opcode:#04x}");
        assert_eq!((rig.poll(), rig.event()), (None, None), "opcode {opcode:#04x}");
        assert_untouched(&rig, BUFFERS, (BUFFER_BYTES * u64::from(RECEIVES)) as usize);
        assert_untouched(&rig, REGION, REGION_BYTES as usize);
        // The next request is accepted as usual.
        assert_eq!(rig.say(&[packet(code::WRITE_ONLY, 0)]).len(), 1, "opcode {opcode:#04x}");
        assert_eq!(rig.read(REGION, 44), [LAST; 44]);
    }
}

#[test]
fn every_response_to_what_was_asked_has_its_whole_effect() {
    let whole = 2 * MTU + 44;
    let ack = Say { opcode: code::ACKNOWLEDGE, aeth: Some(0x1f), ..Say::default() };
    let part = |opcode, psn, length| {
        let aeth = (opcode != code::READ_RESPONSE_MIDDLE).then_some(0x1f);
        Say { opcode, psn, aeth, payload: vec![LAST; length], ..Say::default() }
    };
    let atomic = Say { payload: vec![LAST; 8], ..ack.clone() };
    let atomic = Say { opcode: code::ATOMIC_ACKNOWLEDGE, ..atomic };
    let [write, read] = [SendOpcode::Write, SendOpcode::Read];
    let [add, swap] = [SendOpcode::FetchAdd, SendOpcode::CompareSwap];
    for (opcode, completed, length, answers) in [
        // Of an atomic operation there is none, so its answer says nothing.
        (write, Completed::Write, 44, vec![atomic.clone(), ack]),
        (add, Completed::FetchAdd, 8, vec![atomic.clone()]),
        (swap, Completed::CompareSwap, 8, vec![atomic]),
        (read, Completed::Read, 44, vec![part(code::READ_RESPONSE_ONLY, 0, 44)]),
        (
            read,
            Completed::Read,
            whole,
            vec![
                part(code::READ_RESPONSE_FIRST, 0, MTU),
                part(code::READ_RESPONSE_MIDDLE, 1, MTU),
                part(code::READ_RESPONSE_LAST, 2, 44),
            ],
        ),
    ] {
        let mut rig = rig();
        rig.write(LOCAL, &vec![BEFORE; whole + 1]);
        match opcode == add || opcode == swap {
            true => rig.post_atomic(LOCAL, opcode, [1, 2], 1),
            false => rig.post(opcode, length as u32),
        }
        assert_eq!(rig.work().len(), 1, "one request");
        for answer in &answers {
            assert_eq!(rig.poll(), None, "before {answer:?}");
            assert_eq!(rig.say(std::slice::from_ref(answer)), []);
        }
        let done = rig.poll().unwrap();
        let told = (done.opcode, done.status, done.qpn, done.wqe_index);
        assert_eq!(told, (completed, Status::Success, rig.qpn, 0));
        assert_eq!(done.byte_count, length as u32);
        assert_eq!((rig.poll(), rig.event()), (None, None));
        let arrived = if opcode == write { 0 } else { length };
        assert_eq!(rig.read(LOCAL, arrived), vec![LAST; arrived]);
        assert_untouched(&rig, LOCAL + arrived as u64, whole + 1 - arrived);
    }
}
