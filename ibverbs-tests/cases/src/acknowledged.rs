//! Acknowledgements in a capture, counted: one for each packet that asks and is accepted, in order.

use std::collections::VecDeque;

use anyhow::{Context as _, Result, bail, ensure};
use harness::pair::run_between;
use harness::runner::Case;
use harness::setting::Setting;

use super::PERFTEST;
use super::capture::{DISSECT, LIMIT, TSHARK, tshark};

/// The path MTU of all that is captured: with it the capture tells how many PSNs a READ takes.
const MTU: u32 = 1024;
/// Opcodes of packets that end a message, of READ requests, of their responses and of
/// acknowledgements.
const ENDS: [u8; 8] = [0x02, 0x03, 0x04, 0x05, 0x08, 0x09, 0x0a, 0x0b];
const READ_REQUEST: u8 = 0x0c;
const READ_RESPONSES: std::ops::RangeInclusive<u8> = 0x0d..=0x10;
const ACKNOWLEDGE: u8 = 0x11;
/// The fields that tshark prints.
const FIELDS: &str = "-T fields -e frame.interface_name -e infiniband.bth.opcode \
    -e infiniband.bth.destqp -e infiniband.bth.psn -e infiniband.bth.a \
    -e infiniband.reth.dmalen -e infiniband.aeth.syndrome -e infiniband.aeth.msn";

/// The family.
pub fn cases() -> Vec<Case> {
    let needs = [PERFTEST, TSHARK];
    vec![Case::new("capture/each packet that asks is acknowledged by itself", &needs, captured)]
}

fn captured(setting: &Setting) -> Result<()> {
    let file = setting.directory().join("frames.pcapng");
    let daemon = setting.balboad(&format!("--soft 2 --pcap {}", file.display()))?;
    for command in [
        "ib_write_bw -F -b -m 1024 -s 65536 -n 200",
        "ib_write_bw -F -m 1024 -s 1000 -n 2000",
        "ib_send_bw -F -m 1024 -s 5000 -n 500 -r 16",
        "ib_read_bw -F -m 1024 -s 65536 -n 50",
    ] {
        run_between((&daemon, 0), (&daemon, 1), command)?;
    }
    let task = daemon.run("").arg(setting.bin.join("verbs-data")).words("lists");
    task.limit(LIMIT).run()?.success()?;
    daemon.stop()?;
    let task = tshark(setting, &file).words(DISSECT).words("-Y infiniband.bth").words(FIELDS);
    let lines = task.run()?.success()?.stdout;
    let mut cards = [Card::default(), Card::default()];
    for line in lines.lines() {
        let (interface, frame) = Frame::read(line).with_context(|| format!("{line:?}"))?;
        let (card, direction) = match interface.as_str() {
            "card0-sent" => (0, Direction::Sent),
            "card0-delivered" => (0, Direction::Delivered),
            "card1-sent" => (1, Direction::Sent),
            "card1-delivered" => (1, Direction::Delivered),
            other => bail!("a frame of {other:?}"),
        };
        cards[card].see(direction, &frame).with_context(|| format!("{line:?}"))?;
    }
    for (number, card) in cards.iter().enumerate() {
        card.settle().with_context(|| format!("card {number}"))?;
        let count = card.acknowledged;
        // One in 64 packets asks at least, and 12,800 go either way.
        ensure!(count >= 200, "card {number} acknowledged {count} packets");
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Sent,
    Delivered,
}

/// The fields of a frame, as tshark reads them.
#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    opcode: u8,
    qpn: u32,
    psn: u32,
    asks: bool,
    /// Bytes that a READ asks for.
    length: u32,
    syndrome: u8,
    msn: u32,
}

impl Frame {
    /// The interface, and the frame.
    fn read(line: &str) -> Result<(String, Self)> {
        let mut fields = line.split('\t');
        let mut next = || fields.next().context("too few fields");
        let interface = next()?.to_owned();
        let mut numbers = [0; 7];
        for number in &mut numbers {
            *number = match next()? {
                "" | "False" => 0,
                "True" => 1,
                text => match text.strip_prefix("0x") {
                    Some(digits) => u32::from_str_radix(digits, 16)?,
                    None => text.parse()?,
                },
            };
        }
        let [opcode, qpn, psn, asks, length, syndrome, msn] = numbers;
        let (opcode, syndrome) = (u8::try_from(opcode)?, u8::try_from(syndrome)?);
        Ok((interface, Self { opcode, qpn, psn, asks: asks == 1, length, syndrome, msn }))
    }

    /// How many PSNs a request takes.
    fn packets(&self) -> u32 {
        if self.opcode == READ_REQUEST { self.length.div_ceil(MTU).max(1) } else { 1 }
    }
}

/// How far `psn` is behind `reference`, from -2^23 to 2^23 - 1; ahead of it if negative.
fn behind(psn: u32, reference: u32) -> i32 {
    (reference.wrapping_sub(psn) << 8) as i32 >> 8
}

/// A card as responder. One QP at a time is at work.
#[derive(Debug, Default)]
struct Card {
    /// The QP, the PSN that it expects, and the messages that it has executed.
    qpn: u32,
    expected: u32,
    messages: u32,
    /// PSN of each packet that was accepted, and the messages executed before it.
    accepted: Vec<(u32, u32)>,
    /// PSN and message number of each acknowledgement that is due.
    owed: VecDeque<(u32, u32)>,
    /// Repetitions that may be acknowledged.
    repetitions: u64,
    acknowledged: u64,
}

impl Card {
    fn see(&mut self, direction: Direction, frame: &Frame) -> Result<()> {
        match (direction, frame.opcode) {
            (Direction::Delivered, 0..=READ_REQUEST) => self.ask(frame),
            (Direction::Sent, ACKNOWLEDGE) => self.answer(frame),
            (Direction::Sent, opcode) if READ_RESPONSES.contains(&opcode) => {
                let overtaken = self.owed.front().filter(|(psn, _)| behind(*psn, frame.psn) > 0);
                ensure!(overtaken.is_none(), "the ACK of {overtaken:?} was overtaken");
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn ask(&mut self, frame: &Frame) -> Result<()> {
        if frame.qpn != self.qpn {
            self.settle()?;
            let (acknowledged, qpn) = (self.acknowledged, frame.qpn);
            *self = Self { qpn, expected: frame.psn, acknowledged, ..Self::default() };
        }
        let is_read = frame.opcode == READ_REQUEST;
        if frame.psn == self.expected {
            self.accepted.push((frame.psn, self.messages));
            self.expected = frame.psn.wrapping_add(frame.packets()) & 0xff_ffff;
            self.messages += u32::from(is_read || ENDS.contains(&frame.opcode));
            if frame.asks && !is_read {
                self.owed.push_back((frame.psn, self.messages));
            }
        } else if behind(frame.psn, self.expected) > 0 && !is_read {
            self.repetitions += 1;
        }
        Ok(())
    }

    fn answer(&mut self, frame: &Frame) -> Result<()> {
        let Frame { psn, msn, syndrome, .. } = *frame;
        match (syndrome >> 5, syndrome) {
            (0, _) if self.owed.front().is_some_and(|(owed, _)| *owed == psn) => {
                let due = self.owed.pop_front().map(|(_, messages)| messages);
                ensure!(due == Some(msn), "{msn} messages, not {due:?}");
                self.acknowledged += 1;
            }
            (0, _) => {
                let next = self.owed.front();
                let left = self.repetitions.checked_sub(1);
                self.repetitions =
                    left.with_context(|| format!("nobody asked; {next:?} is owed"))?;
            }
            // No receive request, or a gap: the responder accepted neither this packet nor later ones.
            (1, _) | (_, 0x60) => {
                while let Some((last, messages)) = self.accepted.pop() {
                    if behind(last, psn) > 0 {
                        self.accepted.push((last, messages));
                        break;
                    }
                    (self.expected, self.messages) = (last, messages);
                }
                while self.owed.back().is_some_and(|(owed, _)| behind(*owed, psn) <= 0) {
                    self.owed.pop_back();
                }
                ensure!(self.owed.is_empty(), "a NAK before {:?}", self.owed);
            }
            _ => bail!("a request was refused"),
        }
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        ensure!(self.owed.is_empty(), "never acknowledged: {:?}", self.owed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: u8 = 0x0a;

    fn ask(opcode: u8, psn: u32) -> Frame {
        Frame { opcode, qpn: 7, psn, asks: true, length: 2 * MTU, ..Frame::default() }
    }

    fn answer(psn: u32, msn: u32, syndrome: u8) -> Frame {
        Frame { opcode: ACKNOWLEDGE, psn, msn, syndrome, ..Frame::default() }
    }

    fn see(asked: &[Frame], answered: &[Frame]) -> Result<()> {
        let mut card = Card::default();
        asked.iter().try_for_each(|frame| card.see(Direction::Delivered, frame))?;
        answered.iter().try_for_each(|frame| card.see(Direction::Sent, frame))?;
        card.settle()
    }

    #[test]
    fn what_is_owed_is_counted() {
        let all = [ask(WRITE, 0xff_fffe), ask(READ_REQUEST, 0xff_ffff), ask(WRITE, 1)];
        let (first, last) = (answer(0xff_fffe, 1, 0), answer(1, 3, 0x1f));
        let response = |psn| Frame { opcode: 0x0e, psn, ..Frame::default() };
        let responses = [response(0xff_ffff), response(0)];
        let [one, other] = responses;
        assert!(see(&all, &[first, one, other, last]).is_ok());
        // Merged, left out, one too many, in another order, of another message number.
        assert!(see(&all, &[one, other, last]).is_err());
        assert!(see(&all, &[first, one, other]).is_err());
        assert!(see(&all, &[first, one, other, last, last]).is_err());
        assert!(see(&all, &[last, first]).is_err());
        assert!(see(&all, &[first, answer(1, 4, 0)]).is_err());
    }

    #[test]
    fn repetitions_and_what_is_put_off_are_told_apart() {
        let all = [ask(WRITE, 0), ask(WRITE, 1), ask(WRITE, 0)];
        let done = [answer(0, 1, 0), answer(1, 2, 0)];
        assert!(see(&all, &[done[0], done[1], answer(1, 2, 0)]).is_ok());
        assert!(see(&all, &done).is_ok());
        let mut card = Card::default();
        for psn in 0..4 {
            card.see(Direction::Delivered, &ask(0x04, psn)).unwrap();
        }
        card.see(Direction::Sent, &answer(0, 1, 0)).unwrap();
        card.see(Direction::Sent, &answer(1, 1, 0x21)).unwrap();
        card.settle().unwrap();
        card.see(Direction::Delivered, &ask(0x04, 1)).unwrap();
        card.see(Direction::Sent, &answer(1, 2, 0)).unwrap();
        assert!(card.see(Direction::Sent, &answer(1, 2, 0)).is_err());
    }
}
