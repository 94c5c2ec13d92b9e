//! Services between a frame and the memory that it is for.

use fpga_regs::engine::wqe::SendOpcode;
use roce::opcode::code;
use roce::{Checked, Placement, Services, Sink, Verdict};

use super::pair::{MEMORY, Pair};
use super::rig::{REGION, REGION_BYTES, Rig, Say, VA};
use super::*;

/// Does nothing anywhere, and counts.
#[derive(Debug, Default)]
struct Nothing(Rc<RefCell<[u64; 3]>>);

impl Services for Nothing {
    fn check(&mut self, _: &Checked<'_>) -> Verdict {
        self.0.borrow_mut()[0] += 1;
        Verdict::Accept
    }

    fn act(&mut self, placement: &Placement, _: &mut [u8]) -> Sink {
        self.0.borrow_mut()[1] += 1;
        placement.sink
    }

    fn done(&mut self, _: Qpn, placed: Placed) {
        assert_eq!(placed, Placed::Copied);
        self.0.borrow_mut()[2] += 1;
    }
}

/// Turns the bits of all payload, and puts WRITEs so many bytes further.
#[derive(Debug)]
struct Turns(u64);

impl Services for Turns {
    fn act(&mut self, placement: &Placement, frame: &mut [u8]) -> Sink {
        for byte in &mut frame[placement.range.clone()] {
            *byte = !*byte;
        }
        match placement.sink {
            Sink::Remote { rkey, va } => Sink::Remote { rkey, va: va + self.0 },
            other => other,
        }
    }
}

#[test]
fn services_that_do_nothing_see_each_packet_at_each_place() {
    let mut pair = Pair::new();
    let seen = Rc::default();
    // A new address begins with a new stack, and the same services.
    pair.other.card.network.stack.set_services(Some(Box::new(Nothing(Rc::clone(&seen)))));
    pair.one.write(MEMORY, &[7; 3000]);
    let done = pair.carry(SendOpcode::Write, 3000).unwrap();
    assert_eq!(done.status, Status::Success);
    assert_eq!(*seen.borrow(), [3; 3]);
    assert_eq!(pair.other.read(REGION, 3000), [7; 3000]);
}

#[test]
fn services_stay_when_a_card_gets_another_address() {
    let (mut card, _) = card(IcrcPolicy::CheckAll);
    card.network.stack.set_services(Some(Box::new(Turns(0))));
    card.network.set_identity(Identity { mac: PEER, ipv4: 0x0a00_0002 });
    assert!(card.network.stack.services().is_some());
    card.network.reset();
    assert!(card.network.stack.services().is_some());
}

fn write(rig: &mut Rig) -> u8 {
    let reth = Some((VA, 44));
    let say = Say { opcode: code::WRITE_ONLY, reth, payload: vec![0x0f; 44], ..Say::default() };
    rig.say(&[say])[0].aeth.unwrap().0
}

#[test]
fn an_act_changes_bytes_and_place_and_keys_are_checked_behind_it() {
    let mut rig = Rig::new();
    rig.write(REGION, &[0x77; REGION_BYTES as usize]);
    rig.card.network.stack.set_services(Some(Box::new(Turns(100))));
    assert_eq!(write(&mut rig) & 0x60, 0, "acknowledged");
    assert_eq!(rig.read(REGION, 100), [0x77; 100]);
    assert_eq!(rig.read(REGION + 100, 44), [0xf0; 44]);

    // Behind the end of the region.
    let mut rig = Rig::new();
    rig.write(REGION, &[0x77; REGION_BYTES as usize]);
    rig.card.network.stack.set_services(Some(Box::new(Turns(REGION_BYTES - 43))));
    assert_eq!(write(&mut rig), 0x63, "remote operational error");
    assert_eq!(rig.read(REGION, REGION_BYTES as usize), vec![0x77; REGION_BYTES as usize]);
}
