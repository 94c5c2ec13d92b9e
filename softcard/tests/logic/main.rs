//! Logic of another crate, this one, in the vFPGAs of cards, beside queue engines.

mod echo;

use std::time::{Duration, Instant};

use echo::Echo;
use fpga_regs::coyote::pci::Bar;
use fpga_regs::coyote::shell;
use fpga_regs::coyote::vfpga::user_csr;
use fpga_regs::engine::window;
use roce::MacAddr;
use softcard::{CardConfig, CardHandle, Error, Image, Link, Runtime, RuntimeConfig, logic};

/// Where the logic stands.
const ECHO: u64 = 1;

fn read(card: &CardHandle, offset: u64) -> u64 {
    card.read(Bar::Shell, user_csr(ECHO) + offset, 8)
}

fn write(card: &CardHandle, offset: u64, value: u64) {
    card.write(Bar::Shell, user_csr(ECHO) + offset, 8, value);
}

#[test]
fn logic_of_another_crate_answers_on_a_card_beside_a_queue_engine() {
    assert!("vqe,echo".parse::<Image>().unwrap_err().contains("there is no image `vqe,echo`"));
    logic::offer("echo", Echo::make).unwrap();
    for name in ["echo", "vqe", "stock", "Echo", ""] {
        let refused = logic::offer(name, Echo::make);
        assert!(matches!(refused, Err(Error::LogicName { .. })), "{name}");
    }
    let image: Image = "vqe,echo".parse().unwrap();
    assert_eq!((image.to_string().as_str(), image.vfpgas()), ("vqe,echo", 2));
    for other in ["stock,echo", "vqe,vqe,vqe,vqe,echo", "vqe,", "vqe,else"] {
        assert!(other.parse::<Image>().is_err(), "{other}");
    }

    let card = || CardConfig::new(Link::Switch, image);
    let config = RuntimeConfig { cards: vec![card(), card()], ..RuntimeConfig::default() };
    let runtime = Runtime::start(config).unwrap();
    let cards = [0, 1].map(|number| runtime.card(number).unwrap());
    let macs = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
    for (card, mac) in cards.iter().zip(macs) {
        let mut bytes = [0; 8];
        bytes[2..].copy_from_slice(&mac);
        card.write(Bar::Shell, shell::MAC_ADDRESS, 8, u64::from_be_bytes(bytes));
        let magic = card.read(Bar::Shell, user_csr(0) + window::MAGIC, 8);
        assert_eq!(magic, window::MAGIC_VALUE, "the queue engine is there, too");
    }
    for (one, other) in [(0, 1), (1, 0)] {
        let (card, peer) = (&cards[one], &cards[other]);
        write(card, 0x08, read(peer, 0x00));
        let gid = MacAddr(macs[other]).link_local().octets();
        for (offset, half) in [(0x10, &gid[..8]), (0x18, &gid[8..])] {
            write(card, offset, u64::from_le_bytes(half.try_into().unwrap()));
        }
        write(card, 0x20, 1);
        assert_eq!((read(card, 0x20), read(card, 0x38)), (1, 0));
    }
    // Each goes there and back, without end.
    for bytes in [1, 1_024, 50_000] {
        write(&cards[0], 0x28, bytes);
    }
    let until = Instant::now() + Duration::from_secs(20);
    while cards.iter().any(|card| read(card, 0x28) < 100) {
        assert!(Instant::now() < until, "{:?}", cards.each_ref().map(|card| read(card, 0x28)));
        std::thread::sleep(Duration::from_millis(1));
    }
    for card in &cards {
        assert_eq!((read(card, 0x30), read(card, 0x38)), (0, 0));
    }
    drop(cards);
    runtime.shutdown();
}
