//! Images that are loaded by the card's own engine, through its registers: the card with the image, and the rest of it
//! after a failure on the way.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use bitstreams::soft::{Logic, SoftImage};
use bitstreams::{model, part};
use fpga_regs::coyote::pci::{Bar, RECONFIGURATION_VECTOR};
use fpga_regs::coyote::shell::{self, CtrlCnfg, Datapath, PrCnfg};
use fpga_regs::coyote::static_layer::{self as s, PrQueue, PrStat};
use fpga_regs::coyote::vfpga::user_csr;
use fpga_regs::coyote::xdma;
use fpga_regs::engine::window;
use hostmem::{Access, DmaMemory, SharedMapping, memfd};
use psp::{Peer, Secret, Version};
use softcard::{
    CardConfig, CardHandle, Image, Link, Protection, Runtime, RuntimeConfig, Spoil, WINDOWS,
};

/// Bytes of a descriptor's data in these tests.
const CHUNK: usize = 64;
const IOVA: u64 = 1 << 32;
const MARK: u64 = 0x7000;

struct Rig {
    card: CardHandle,
    runtime: Runtime,
}

impl Rig {
    fn new(image: Image, vfpgas: Option<u8>) -> Self {
        Self::playing(image, vfpgas, false)
    }

    /// One that may play an FPGA.
    fn playing(image: Image, vfpgas: Option<u8>, plays_fpga: bool) -> Self {
        Self::protected(image, vfpgas, plays_fpga, None)
    }

    fn protected(
        image: Image,
        vfpgas: Option<u8>,
        plays_fpga: bool,
        protection: Option<Protection>,
    ) -> Self {
        let card =
            CardConfig { vfpgas, plays_fpga, protection, ..CardConfig::new(Link::Switch, image) };
        let config = RuntimeConfig { cards: vec![card], ..RuntimeConfig::default() };
        let runtime = Runtime::start(config).unwrap();
        let card = runtime.card(0).unwrap();
        let enable = xdma::INTERRUPT_BLOCK + xdma::USER_INTERRUPT_ENABLE_SET;
        card.write(Bar::Xdma, enable, 4, xdma::USER_INTERRUPT_RECONFIGURATION.into());
        let map = xdma::INTERRUPT_BLOCK + xdma::USER_VECTOR_MAP.at(3);
        card.write(Bar::Xdma, map, 4, 0x0f0e_0d0c);
        Self { card, runtime }
    }

    fn end(self) {
        drop(self.card);
        self.runtime.shutdown();
    }

    fn at(&self, register: u64) -> u32 {
        self.card.read(Bar::Static, register, 4) as u32
    }

    fn put(&self, register: u64, value: u64) {
        self.card.write(Bar::Static, register, 4, value);
    }

    /// Gives the engine all of a file, and waits until it is done.
    fn load(&self, file: &[u8]) {
        let bytes = file.len().next_multiple_of(4096);
        let fd = memfd::create("image", bytes).unwrap();
        let mapping = SharedMapping::new(fd.as_fd(), 0, bytes, Access::ReadWrite).unwrap();
        mapping.write_bytes(0, file).unwrap();
        let memory = DmaMemory::Shared { mapping: Arc::new(mapping), offset: 0 };
        self.card.dma_map(IOVA, bytes as u64, memory).unwrap();
        let mut left = file.len();
        for chunk in file.chunks(CHUNK) {
            let at = IOVA + (file.len() - left) as u64;
            left -= chunk.len();
            self.put(s::PR_ADDR_LOW, at & 0xffff_ffff);
            self.put(s::PR_ADDR_HIGH, at >> 32);
            self.put(s::PR_LEN, chunk.len() as u64);
            self.put(s::PR_CTRL, if left == 0 { 7 } else { 1 });
            // One that takes nothing more does not say so either.
            for _ in 0..1000 {
                if PrQueue::decode(self.at(s::PR_CTRL)).queued == 0 {
                    break;
                }
            }
        }
        self.card.dma_unmap(IOVA, bytes as u64).unwrap();
    }

    fn is_done(&self) -> bool {
        PrStat::decode(self.at(s::PR_STAT)).done
    }

    fn regions(&self) -> u64 {
        self.card.read(Bar::Shell, shell::N_REGIONS, 8)
    }

    /// How many vFPGAs have the queue engine.
    fn engines(&self) -> usize {
        let magic = |index| self.card.read(Bar::Shell, user_csr(index) + window::MAGIC, 8);
        (0..u64::from(WINDOWS)).filter(|index| magic(*index) == window::MAGIC_VALUE).count()
    }

    /// The first registers of its vFPGAs' windows.
    fn magics(&self) -> Vec<u64> {
        let magic = |index| self.card.read(Bar::Shell, user_csr(index) + window::MAGIC, 8);
        (0..u64::from(WINDOWS)).map(magic).collect()
    }

    /// Takes vFPGAs off the datapath, by a bit each, or puts them back.
    fn decouple(&self, vfpgas: u32, off: bool) {
        let register = if off { shell::DATAPATH_SET } else { shell::DATAPATH_CLEAR };
        let value = Datapath { decouple: vfpgas, reset: vfpgas }.encode();
        self.card.write(Bar::Shell, register.at(Default::default()), 8, value);
    }

    /// Writes a value to a register of an engine, which keeps it until it is reset.
    fn mark(&self, vfpga: u64) {
        self.card.write(Bar::Shell, user_csr(vfpga) + window::ADMIN_SQ_BASE, 8, MARK);
    }

    fn marked(&self, vfpga: u64) -> u64 {
        self.card.read(Bar::Shell, user_csr(vfpga) + window::ADMIN_SQ_BASE, 8)
    }

    fn has_avx_bank(&self) -> bool {
        CtrlCnfg::decode(self.card.read(Bar::Shell, shell::CTRL_CNFG, 8)).avx
    }
}

fn image(logic: Logic, count: usize) -> SoftImage {
    SoftImage::new(vec![logic; count]).unwrap()
}

#[test]
fn an_image_makes_another_card_of_it_which_a_reset_leaves() {
    let rig = Rig::new(Image::Vqe, None);
    assert_eq!((rig.regions(), rig.engines()), (u64::from(WINDOWS), usize::from(WINDOWS)));
    for (logic, count) in [(Logic::Vqe, 1), (Logic::Stock, 2), (Logic::Vqe, 3), (Logic::Vqe, 4)] {
        rig.load(&image(logic, count).to_bytes());
        assert!(rig.is_done());
        let vector = rig.card.vector(RECONFIGURATION_VECTOR).unwrap();
        assert_eq!(nix::unistd::read(vector, &mut [0; 8]), Ok(8), "its end is signalled");
        rig.put(s::PR_CTRL, 4);
        assert!(!rig.is_done());
        for _ in 0..2 {
            assert_eq!(rig.regions(), count as u64);
            let engines = if logic == Logic::Vqe { count } else { 0 };
            assert_eq!((rig.engines(), rig.has_avx_bank()), (engines, logic == Logic::Stock));
            rig.put(s::PR_EOST_RESET, 0);
            rig.put(s::PR_EOST_RESET, 1);
        }
        rig.card.reset().unwrap();
        assert_eq!(rig.regions(), count as u64);
        let enable = xdma::INTERRUPT_BLOCK + xdma::USER_INTERRUPT_ENABLE_SET;
        rig.card.write(Bar::Xdma, enable, 4, xdma::USER_INTERRUPT_RECONFIGURATION.into());
        let map = xdma::INTERRUPT_BLOCK + xdma::USER_VECTOR_MAP.at(3);
        rig.card.write(Bar::Xdma, map, 4, 0x0f0e_0d0c);
    }
    rig.end();
}

#[test]
fn an_image_of_one_vfpga_changes_that_alone_while_it_is_decoupled() {
    const M: u64 = window::MAGIC_VALUE;
    let one = |vfpga, logic| SoftImage::of_one(vfpga, logic).unwrap().filled_to(500).unwrap();
    let rig = Rig::new(Image::Vqe, None);
    assert!(PrCnfg::decode(rig.card.read(Bar::Shell, shell::PR_CNFG, 8)).enabled);
    rig.mark(1);
    rig.mark(2);
    assert_eq!((rig.marked(1), rig.marked(2)), (MARK, MARK));
    rig.decouple(0b100, true);
    assert_eq!(rig.magics(), [M, M, u64::MAX, M]);
    rig.load(&one(2, Logic::Vqe).to_bytes());
    assert!(rig.is_done());
    rig.decouple(0b100, false);
    assert_eq!(rig.magics(), [M; 4]);
    assert_eq!((rig.marked(1), rig.marked(2)), (MARK, 0), "it is a new one, and the other is not");
    // What is spoilt, or wants another network, leaves that vFPGA without logic, also behind a reset.
    for (image, spoil) in [(one(2, Logic::Vqe), true), (one(2, Logic::Stock), false)] {
        rig.decouple(0b100, true);
        if spoil {
            rig.card.spoil_reconfiguration(3, Spoil::WrongBit);
        }
        rig.load(&image.to_bytes());
        rig.decouple(0b100, false);
        assert_eq!(rig.magics(), [M, M, 0, M]);
        assert_eq!(rig.marked(1), MARK);
    }
    rig.put(s::PR_EOST_RESET, 0);
    rig.put(s::PR_EOST_RESET, 1);
    assert_eq!((rig.magics(), rig.regions()), (vec![M, M, 0, M], 4));
    rig.decouple(0b100, true);
    rig.load(&one(2, Logic::Vqe).to_bytes());
    rig.decouple(0b100, false);
    assert_eq!(rig.magics(), [M; 4]);
    // A driver that does not decouple it, or names one that is not there, loses the card's image.
    for vfpga in [2, 7] {
        rig.load(&one(vfpga, Logic::Vqe).to_bytes());
        assert_eq!(rig.regions(), u64::MAX);
        rig.load(&image(Logic::Vqe, 4).to_bytes());
        assert_eq!(rig.magics(), [M; 4]);
    }
    rig.end();
}

#[test]
fn what_is_no_image_for_it_leaves_a_card_of_which_the_static_layer_answers_until_one_comes() {
    let good = image(Logic::Vqe, 2).to_bytes();
    let mut spoilt = good.clone();
    spoilt[60] ^= 1;
    for file in [&b"no image"[..], &good[..80], &spoilt, &image(Logic::Vqe, 5).to_bytes()] {
        let rig = Rig::new(Image::Vqe, None);
        rig.load(file);
        assert!(rig.is_done(), "all of it was taken");
        assert_eq!((rig.regions(), rig.engines()), (u64::MAX, 0));
        assert_eq!(rig.at(s::PROBE), s::PROBE_VALUE);
        rig.card.reset().unwrap();
        assert_eq!(rig.regions(), u64::MAX);
        rig.load(&good);
        assert_eq!((rig.regions(), rig.engines()), (2, 2));
        rig.end();
    }
    let rig = Rig::new(Image::Vqe, Some(0));
    assert_eq!(rig.regions(), u64::MAX, "it came without an image");
    rig.end();
}

/// Its stack would send in the clear, but the owner wants sealed frames.
#[test]
fn a_card_that_seals_takes_no_published_image() {
    let peer = Peer { addresses: vec![[10, 0, 0, 2].into()], secret: Secret::new([7; 32]) };
    let protection = Protection { version: Version::AesGcm128, port: 1000, peers: vec![peer] };
    for plays_fpga in [false, true] {
        let file = |logic| match plays_fpga {
            true => model::make(&image(logic, 2)).unwrap(),
            false => image(logic, 2).to_bytes(),
        };
        for came in [Image::Vqe, Image::Stock, Image::StockOld] {
            let rig = Rig::protected(came, None, plays_fpga, Some(protection.clone()));
            let regions = if came == Image::Vqe { WINDOWS.into() } else { u64::MAX };
            assert_eq!(rig.regions(), regions);
            rig.load(&file(Logic::Stock));
            assert!(rig.is_done(), "all of it was taken");
            assert_eq!(rig.regions(), u64::MAX);
            rig.card.reset().unwrap();
            assert_eq!(rig.regions(), u64::MAX);
            rig.load(&file(Logic::Vqe));
            assert_eq!((rig.regions(), rig.engines()), (2, 2));
            rig.end();
        }
    }
}

#[test]
fn whatever_happens_at_whichever_chunk_the_card_has_the_old_image_the_new_one_or_none() {
    let file = image(Logic::Vqe, 2).filled_to(10 * CHUNK as u32).unwrap().to_bytes();
    for chunk in 0..10u32 {
        for how in [Spoil::PowerLost, Spoil::WrongBit, Spoil::Stall, Spoil::NoEnd] {
            let rig = Rig::new(Image::Vqe, Some(3));
            rig.card.spoil_reconfiguration(chunk, how);
            rig.load(&file);
            let wanted = match (how, chunk) {
                (Spoil::NoEnd, _) => 2,
                (Spoil::Stall, 0) => 3,
                _ => u64::MAX,
            };
            assert_eq!(rig.regions(), wanted, "{how:?} at {chunk}");
            // Behind a loss of power the rest comes as an image without a beginning.
            let ends = how == Spoil::WrongBit || how == Spoil::PowerLost && chunk < 9;
            assert_eq!(rig.is_done(), ends, "{how:?} at {chunk}");
            // A reset and a whole image mend all of it.
            rig.card.reset().unwrap();
            rig.load(&file);
            assert_eq!((rig.regions(), rig.engines()), (2, 2), "{how:?} at {chunk}");
            rig.end();
        }
    }
}

#[test]
fn one_that_plays_an_fpga_takes_bitstreams_as_its_configuration_logic_does() {
    let bitstream = |logic, count| model::make(&image(logic, count)).unwrap();
    let good = bitstream(Logic::Vqe, 2);
    let rig = Rig::playing(Image::Vqe, Some(3), true);
    let frames = good.windows(8).position(|it| *it == *b"\x89balboa\n").unwrap();
    let mut spoilt = good.clone();
    spoilt[frames + 60] ^= 1;
    let mut other = good.clone();
    let idcode = part::MODEL.idcode.unwrap().to_be_bytes();
    let at = good.windows(4).position(|it| *it == idcode).unwrap();
    other[at..at + 4].copy_from_slice(&0x14b7_d093_u32.to_be_bytes());
    // What writes no frame changes nothing, and its end is told all the same.
    for nothing in [&other[..], &good[..frames], &image(Logic::Vqe, 1).to_bytes()] {
        rig.load(nothing);
        assert!(rig.is_done());
        assert_eq!((rig.regions(), rig.engines()), (3, 3));
        rig.put(s::PR_CTRL, 4);
    }
    // What breaks off or has another sum leaves a dead shell, until a good one comes.
    for dead in [&spoilt[..], &good[..good.len() - 80], &good[..frames + 8]] {
        rig.load(dead);
        assert!(rig.is_done());
        assert_eq!((rig.regions(), rig.engines()), (u64::MAX, 0));
        rig.load(&other);
        assert_eq!(rig.regions(), u64::MAX, "one for another device mends it");
        rig.card.reset().unwrap();
        rig.load(&bitstream(Logic::Stock, 2));
        assert_eq!((rig.regions(), rig.engines(), rig.has_avx_bank()), (2, 0, true));
        rig.load(&good);
        assert_eq!((rig.regions(), rig.engines()), (2, 2));
    }
    assert_eq!(rig.at(s::PR_CNT), 2, "bitstreams that came to their end since the reset");
    rig.end();
}
