use super::*;
use crate::fake::FakeCard;

fn attempt(card: FakeCard) -> (Rc<FakeCard>, Result<Card, Error>) {
    let card = Rc::new(card);
    let backend: Rc<dyn CardBackend> = Rc::<FakeCard>::clone(&card);
    let result = bring_up(0, backend, PortAddress::default_of(0));
    (card, result)
}

fn refusal(card: FakeCard) -> String {
    match attempt(card).1 {
        Ok(_) => panic!("the card came up"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_healthy_card_comes_up_with_engines_addresses_and_interrupts() {
    let (fake, card) = attempt(FakeCard::new(4));
    let mut card = card.unwrap();
    assert_eq!(card.windows.len(), 4);
    assert_eq!(fake.get(Bar::Shell, shell::IP_ADDRESS), 0x0a4d_0001);
    assert_eq!(fake.get(Bar::Shell, shell::MAC_ADDRESS), 0x0200_0a4d_0001);
    assert_eq!(fake.get(Bar::Static, static_layer::PR_EOST_RESET), 1);
    assert_eq!(fake.get(Bar::Xdma, xdma::USER_INTERRUPT_ENABLE_SET), 0x7fff);
    assert_eq!(fake.get(Bar::Xdma, xdma::USER_VECTOR_MAP + 12), 0x0f0e_0d0c);
    let info = card.info();
    assert_eq!((info.name.as_str(), info.firmware.as_str()), ("balboa0", "1.0.1"));
    assert!(info.port.link_up);
    assert_eq!(info.port.gids.len(), 16);
    assert_eq!(info.port.gids[1][10..], [0xff, 0xff, 10, 77, 0, 1]);
}

#[test]
fn a_card_that_left_the_bus_is_told_from_one_with_another_design() {
    let gone = FakeCard::new(1);
    gone.set(Bar::Static, static_layer::PROBE, u64::from(u32::MAX));
    assert!(refusal(gone).contains("all ones"));
    let other = FakeCard::new(1);
    other.set(Bar::Static, static_layer::PROBE, 0x1234);
    assert!(refusal(other).contains("0x00001234"));
    let half = FakeCard::new(1);
    half.set(Bar::Shell, shell::PROBE, u64::MAX);
    assert!(refusal(half).contains("shell reads all ones"));
    let shell = FakeCard::new(1);
    shell.set(Bar::Shell, shell::PROBE, 5);
    assert!(refusal(shell).contains("shell answers the probe with 0x5"));
}

#[test]
fn nonsense_from_the_card_is_refused_by_name() {
    let engines = FakeCard::new(1);
    engines.set(Bar::Xdma, xdma::engine(Direction::CardToHost, 1), 0);
    assert!(refusal(engines).contains("DMA engine 1 (CardToHost)"));
    let channels = FakeCard::new(1);
    channels.set(Bar::Shell, shell::N_CHAN, 9);
    assert!(refusal(channels).contains("9 DMA channels"));
    let regions = FakeCard::new(1);
    regions.set(Bar::Shell, shell::N_REGIONS, 16);
    assert!(refusal(regions).contains("16 vFPGAs"));
}

#[test]
fn windows_without_an_engine_are_passed_over_unless_there_is_none() {
    let two = FakeCard::new(2);
    two.set(Bar::Shell, vfpga::user_csr(0) + window::MAGIC, 0);
    let card = attempt(two).1.unwrap();
    assert_eq!(card.windows.iter().map(|w| w.index).collect::<Vec<_>>(), [1]);
    let none = FakeCard::new(1);
    none.set(Bar::Shell, vfpga::user_csr(0) + window::MAGIC, u64::MAX);
    assert!(refusal(none).contains("none of its vFPGAs"));
}

#[test]
fn another_contract_version_and_a_stuck_engine_are_named() {
    let card = FakeCard::new(1);
    card.set(Bar::Shell, vfpga::user_csr(0) + window::VERSION, 2 << 16 | 3);
    assert!(refusal(card).contains("version 2.3"));
    let card = FakeCard::new(1);
    card.window(0, |w| w.stuck = true);
    assert!(refusal(card).contains("does not reset"));
}
