use bitstreams::EngineKind;
use fpga_regs::coyote::pci::DEVICE_CONTROL_RELAXED_ORDERING;
use fpga_regs::coyote::shell::{CTRL_CNFG_DEFAULT, Map};
use fpga_regs::coyote::vfpga::{EventKind, IsrRead, IsrWrite};
use fpga_regs::engine::window;

use super::*;
use crate::fake::FakeCard;
use crate::soft::{DEVICE_CONTROL, EXPRESS};

fn manifest(map: Map) -> Manifest {
    Manifest { name: "test.bit".into(), map, engine: EngineKind::Vqe, ..Manifest::default() }
}

fn attempt_with(card: FakeCard, manifest: &Manifest) -> (Arc<FakeCard>, Result<Device, Error>) {
    let card = Arc::new(card);
    let backend: Arc<dyn CardBackend> = Arc::<FakeCard>::clone(&card);
    let result = bring_up(0, backend, PortAddress::default_of(0), manifest);
    (card, result)
}

fn attempt(card: FakeCard) -> (Arc<FakeCard>, Result<Device, Error>) {
    attempt_with(card, &manifest(Map::Since2026))
}

fn sentence(result: Result<Device, Error>) -> String {
    match result {
        Ok(_) => panic!("the card came up"),
        Err(error) => error.to_string(),
    }
}

fn refusal(card: FakeCard) -> String {
    sentence(attempt(card).1)
}

#[test]
fn a_healthy_card_comes_up_with_engines_addresses_and_interrupts() {
    let (fake, card) = attempt(FakeCard::new(4));
    let mut card = card.unwrap();
    assert_eq!(card.windows.len(), 4);
    assert_eq!(fake.written(Bar::Shell, shell::IP_ADDRESS), 0x0a4d_0001);
    assert_eq!(fake.written(Bar::Shell, shell::MAC_ADDRESS), 0x0200_0a4d_0001);
    assert_eq!(fake.written(Bar::Static, static_layer::PR_EOST_RESET), 1);
    assert_eq!(fake.written(Bar::Xdma, xdma::engine(Direction::CardToHost, 2) + 4), 7);
    assert_eq!(fake.written(Bar::Xdma, 0x2008), 0x7fff);
    assert_eq!(fake.written(Bar::Xdma, 0x208c), 0x0f0e_0d0c);
    assert_eq!((card.name().as_str(), card.firmware.as_str()), ("balboa0", "1.2.1"));
    assert_eq!(card.port().link_up, 1);
    assert_eq!(card.gids.len(), 16);
    assert_eq!(card.gids[1][10..], [0xff, 0xff, 10, 77, 0, 1]);
}

#[test]
fn an_engine_whose_connections_are_the_shells_is_not_driven() {
    let card = FakeCard::new(1);
    let register = vfpga::user_csr(0) + window::CAPABILITIES;
    let offers = card.read64(Bar::Shell, register) | window::Capabilities::DRIVER_CONTEXTS.bits();
    card.set(Bar::Shell, register, offers);
    let why = refusal(card);
    assert!(why.contains("DRIVER_CONTEXTS") && why.contains("vFPGA 0"), "{why}");
    assert!(why.contains("load an image"), "{why}");
}

#[test]
fn the_function_may_use_the_bus_but_not_out_of_order() {
    let card = FakeCard::new(1);
    // Another capability comes first.
    card.set_config(pci::CONFIG_CAPABILITIES, 0x40);
    card.set_config(0x40, EXPRESS << 8 | 1);
    card.write_config(DEVICE_CONTROL, 0x0810);
    let (fake, card) = attempt(card);
    card.unwrap();
    assert_eq!(fake.read_config(pci::CONFIG_COMMAND), 0x0006);
    // Extended tags and reads of 512 bytes; the other fields stay.
    assert_eq!(fake.read_config(DEVICE_CONTROL), 0x2900);
    let stubborn = FakeCard::new(1);
    stubborn.set_config(DEVICE_CONTROL, 0x0810);
    let why = refusal(stubborn);
    assert!(why.contains("relaxed ordering stays on") && why.contains("0x0810"), "{why}");
    assert_eq!(0x0810 & DEVICE_CONTROL_RELAXED_ORDERING, DEVICE_CONTROL_RELAXED_ORDERING);
    let bare = FakeCard::new(1);
    bare.set_config(pci::CONFIG_CAPABILITIES, 0);
    assert!(refusal(bare).contains("no PCI Express capability"));
    let circular = FakeCard::new(1);
    circular.set_config(EXPRESS, EXPRESS << 8 | 1);
    assert!(refusal(circular).contains("no PCI Express capability"));
}

#[test]
fn a_card_that_left_the_bus_is_told_from_one_with_another_design() {
    let gone = FakeCard::new(1);
    gone.set(Bar::Static, static_layer::PROBE, u64::from(u32::MAX));
    assert!(refusal(gone).contains("the card is gone"));
    // It answers something before it leaves, and its emulated identity stays.
    let leaving = FakeCard::new(1);
    leaving.set_config(pci::CONFIG_CAPABILITIES, 0);
    leaving.set(Bar::Static, static_layer::PROBE, u64::from(u32::MAX));
    assert!(refusal(leaving).contains("the card is gone"));
    let later = FakeCard::new(1);
    later.set_config(DEVICE_CONTROL, u16::MAX);
    later.set(Bar::Static, static_layer::PROBE, u64::from(u32::MAX));
    assert!(refusal(later).contains("the card is gone"));
    let other = FakeCard::new(1);
    other.set(Bar::Static, static_layer::PROBE, 0x1234);
    assert!(refusal(other).contains("0x00001234"));
    let half = FakeCard::new(1);
    half.set(Bar::Shell, shell::PROBE, u64::MAX);
    assert!(refusal(half).contains("shell reads all ones"));
    let shell = FakeCard::new(1);
    shell.set(Bar::Shell, shell::PROBE, 5);
    assert!(refusal(shell).contains("shell answers the probe with 0x5"));
    let off = FakeCard::new(1);
    off.set_config(pci::CONFIG_VENDOR, u16::MAX);
    assert!(refusal(off).contains("configuration space reads all ones: the card is gone"));
    let gpu = FakeCard::new(1);
    gpu.set_config(pci::CONFIG_VENDOR, 0x10de);
    assert!(refusal(gpu).contains("10de:903f, not an XDMA shell such as 10ee:903f"));
    let versal = FakeCard::new(1);
    versal.set_config(pci::CONFIG_DEVICE, 0xb03f);
    assert!(refusal(versal).contains("10ee:b03f"));
}

#[test]
fn nothing_is_written_to_a_card_with_another_design() {
    let other = FakeCard::new(1);
    other.set(Bar::Static, static_layer::PROBE, 0x1234);
    let (fake, result) = attempt(other);
    assert!(result.is_err());
    assert_eq!(fake.written(Bar::Static, static_layer::PR_EOST), 0);
    assert_eq!(fake.written(Bar::Xdma, xdma::ENGINE_CONTROL), 0);
}

#[test]
fn nonsense_from_the_card_is_refused_by_name() {
    let engines = FakeCard::new(1);
    engines.set(Bar::Xdma, xdma::engine(Direction::CardToHost, 1), 0);
    assert!(refusal(engines).contains("DMA engine 1 (CardToHost)"));
    let swapped = FakeCard::new(1);
    swapped.set(Bar::Xdma, xdma::engine(Direction::HostToCard, 0), 0x1fc1_0000);
    assert!(refusal(swapped).contains("identifies itself as 0x1fc10000, not 0x1fc0"));
    let channels = FakeCard::new(1);
    channels.set(Bar::Shell, shell::N_CHAN, 9);
    assert!(refusal(channels).contains("9 DMA channels"));
    for regions in [0, 16, 1 << 32] {
        let card = FakeCard::new(1);
        card.set(Bar::Shell, shell::N_REGIONS, regions);
        assert!(refusal(card).contains(&format!("{regions} vFPGAs, not 1 to 15")));
    }
    for ctrl in [0, u64::MAX, 1 << 33 | CTRL_CNFG_DEFAULT.encode()] {
        let card = FakeCard::new(1);
        card.set(Bar::Shell, shell::CTRL_CNFG, ctrl);
        assert!(refusal(card).contains("describes no TLBs"), "{ctrl:#x}");
    }
    let memory = FakeCard::new(1);
    memory.set(Bar::Shell, shell::MEM_CNFG, 2);
    assert!(refusal(memory).contains("without host streams (memory configuration 0x2)"));
}

#[test]
fn a_card_with_other_regions_than_its_manifest_is_refused() {
    let wanted = Manifest { regions: Some(4), ..manifest(Map::Since2026) };
    let why = sentence(attempt_with(FakeCard::new(2), &wanted).1);
    assert!(why.contains("has 2 vFPGAs, and test.bit has 4 by its manifest"), "{why}");
    assert!(attempt_with(FakeCard::new(4), &wanted).1.is_ok());
}

#[test]
fn the_register_map_is_the_manifests_and_what_contradicts_it_is_refused() {
    let old = |rdma, tcp| {
        let card = FakeCard::new(1);
        card.set(Bar::Shell, shell::RDMA_CNFG.at(Map::Since2026), 0);
        card.set(Bar::Shell, shell::RDMA_CNFG.at(Map::Before2026), rdma);
        card.set(Bar::Shell, shell::TCP_CNFG.at(Map::Before2026), tcp);
        card
    };
    let before = manifest(Map::Before2026);
    assert!(attempt_with(old(1, 0), &before).1.is_ok());
    let why = sentence(attempt_with(old(1, 0), &manifest(Map::Since2026)).1);
    assert!(why.contains("built without RDMA: register 7 reads 0x0 in register map since-2026"));
    assert!(why.contains("correct shell-map in the manifest of test.bit"), "{why}");
    let why = sentence(attempt_with(old(0, 3), &before).1);
    assert!(why.contains("register 6 reads 0x0 in register map before-2026"), "{why}");
    let why = sentence(attempt_with(old(4, 0), &before).1);
    assert!(why.contains("register 6 reads 0x4, which is no RDMA configuration"), "{why}");
    let why = sentence(attempt_with(old(1, 1 << 40), &before).1);
    assert!(why.contains("no TCP configuration: the register map is not before-2026"), "{why}");
}

#[test]
fn a_shell_with_the_avx_bank_is_spoken_to_there() {
    let card = FakeCard::new(1);
    let avx = CtrlCnfg { avx: true, ..CTRL_CNFG_DEFAULT };
    card.set(Bar::Shell, shell::CTRL_CNFG, avx.encode());
    let isr = |bank: Bank| bank.cnfg(0) + vfpga::ISR;
    let news = IsrRead { kind: EventKind::Notify, ..IsrRead::default() };
    card.set(Bar::Shell, isr(Bank::Avx), news.encode());
    let (fake, card) = attempt(card);
    let card = card.unwrap();
    // Its interrupts are answered there, and nothing goes where the other bank is.
    card.shell.attend().unwrap();
    let clear = IsrWrite { clear_pending: true, ..IsrWrite::default() };
    assert_eq!(fake.written(Bar::Shell, isr(Bank::Avx)), clear.encode());
    assert_eq!(fake.written(Bar::Shell, isr(Bank::Plain)), 0);
}

#[test]
fn windows_without_an_engine_are_passed_over_unless_there_is_none() {
    let two = FakeCard::new(2);
    two.set(Bar::Shell, vfpga::user_csr(0) + window::MAGIC, 0);
    let card = attempt(two).1.unwrap();
    assert_eq!(card.windows.iter().map(|w| w.index).collect::<Vec<_>>(), [1]);
    let none = FakeCard::new(1);
    none.set(Bar::Shell, vfpga::user_csr(0) + window::MAGIC, u64::MAX);
    assert!(refusal(none).contains("none of its 1 vFPGAs holds a verbs queue engine"));
}

#[test]
fn a_published_bitstream_without_wide_registers_is_refused_before_its_port_has_a_place() {
    let (fake, card) = attempt_with(
        FakeCard::new(1),
        &Manifest { engine: EngineKind::Stock, ..manifest(Map::Since2026) },
    );
    let why = card.err().unwrap().to_string();
    assert!(why.contains("no AVX registers"), "{why}");
    assert_eq!(fake.written(Bar::Shell, vfpga::user_csr(0) + window::CONTROL), 0);
}

#[test]
fn another_contract_version_and_a_stuck_engine_are_named() {
    let card = FakeCard::new(1);
    card.set(Bar::Shell, vfpga::user_csr(0) + window::VERSION, 2 << 16 | 3);
    assert!(refusal(card).contains("version 2.3"));
    let card = FakeCard::new(1);
    card.set(Bar::Shell, vfpga::user_csr(0) + window::STATUS, window::STATUS_FATAL);
    assert!(refusal(card).contains("does not reset"));
}

#[test]
fn a_software_card_is_one_that_says_so_and_nothing_else_is() {
    let card = FakeCard::new(1);
    assert!(!is_software_card(&card), "a card without the capability is an FPGA");
    let at = 0xb0;
    card.set_config(EXPRESS, u16::from(pci::CAPABILITY_PCI_EXPRESS) | at << 8);
    card.set_config(at, u16::from(pci::CAPABILITY_VENDOR_SPECIFIC));
    assert!(!is_software_card(&card), "a vendor's other capability");
    let mark = pci::SOFTWARE_CARD.to_le_bytes();
    for (offset, word) in (4..).step_by(2).zip(mark.chunks(2)) {
        card.set_config(at + offset, u16::from_le_bytes([word[0], word[1]]));
    }
    assert!(is_software_card(&card));
    for offset in 4..12 {
        let word = at + (offset & !1);
        let before = card.read_config(word);
        card.set_config(word, before ^ 1 << (8 * (offset & 1)));
        assert!(!is_software_card(&card), "byte {offset} is another");
        card.set_config(word, before);
    }
}
