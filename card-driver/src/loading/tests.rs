use bitstreams::EngineKind;
use bitstreams::soft::{Logic, SoftImage};
use fpga_regs::coyote::shell::{Map, PrCnfg};
use fpga_regs::coyote::vfpga::user_csr;
use fpga_regs::engine::window;
use hostmem::{Lifeline, PAGE_BYTES};
use softcard::{Runtime, Spoil};
use trial::share::share;

use super::*;
use crate::address::PortAddress;
use crate::backend::DoorbellGrant;
use crate::bringup::bring_up;
use crate::fake::FakeCard;
use crate::hosted::HostedOptions;
use crate::soft::{self, SoftBackend, SoftCard};

/// Chunks of an image in these tests.
const CHUNKS: u32 = 10;

/// A software card, and the hold by which tests spoil its work.
struct Rig {
    device: Device,
    card: Arc<SoftBackend>,
    runtime: Runtime,
}

fn manifest(vfpgas: u8) -> Manifest {
    let (map, engine) = (Map::default(), EngineKind::Vqe);
    Manifest { name: "test".into(), map, engine, regions: Some(vfpgas), ..Manifest::default() }
}

fn image(vfpgas: u8) -> Arc<Vec<u8>> {
    let image = SoftImage::new(vec![Logic::Vqe; vfpgas.into()]).unwrap();
    image.filled_to(1000).unwrap().to_bytes().into()
}

/// Whether its buffers have no other holder, so that their memory goes with it.
fn is_the_last(loading: &Loading) -> bool {
    !loading.buffers.is_empty() && loading.buffers.iter().all(|it| Arc::strong_count(it) == 1)
}

/// The time is the tests' own, so that no card is too slow for it but one that stands still.
fn pace() -> Pace {
    Pace { chunk: 100, limit: LIMIT }
}

impl Rig {
    fn new(vfpgas: u8) -> Self {
        let cards = [SoftCard { vfpgas: Some(vfpgas), ..SoftCard::default() }];
        let (runtime, mut cards) = soft::start(&cards, &[], None, vec![], 0).unwrap();
        let card = Arc::new(cards.remove(0));
        let backend = Arc::<SoftBackend>::clone(&card);
        let address = PortAddress::default_of(0);
        let device = match vfpgas {
            0 => Device::without_image(0, backend, address, manifest(0), HostedOptions::default()),
            _ => bring_up(0, backend, address, &manifest(vfpgas)).unwrap(),
        };
        Self { device, card, runtime }
    }

    /// Loads an image; how many chunks were seen to be taken.
    fn load(&mut self, image: Arc<Vec<u8>>, is: Manifest) -> Result<u64, (u64, Error)> {
        let mut loading = self.device.begin_loading(image, pace()).unwrap();
        let begun = Instant::now();
        // Where a card stands still the time goes on.
        let mut waited = 0;
        loop {
            match loading.step(begun + Duration::from_millis(waited)) {
                Ok(LoadingStep::Ended) => break,
                Ok(LoadingStep::Moved) => waited = 0,
                Ok(LoadingStep::Waits) => waited += 10,
                Err(error) => return Err((loading.progress().0 / 100, error)),
            }
        }
        let taken = loading.progress().0 / 100;
        let outcome = self.device.finish_loading(&loading, is, |_| {});
        assert!(is_the_last(&loading));
        outcome.map_err(|error| (taken, error))?;
        Ok(taken)
    }

    /// Loads an image of one vFPGA alone, whose engine is given up before.
    fn load_one(&mut self, vfpga: u8, image: Arc<Vec<u8>>) -> Result<(), Error> {
        self.give_up(vfpga);
        let mut loading = self.device.begin_loading_one(vfpga, image, pace())?;
        let (begun, mut waited) = (Instant::now(), 0);
        loop {
            match loading.step(begun + Duration::from_millis(waited)) {
                Ok(LoadingStep::Ended) => {
                    let outcome = self.device.finish_loading_one(&mut loading);
                    assert!(is_the_last(&loading));
                    return outcome;
                }
                Ok(LoadingStep::Moved) => waited = 0,
                Ok(LoadingStep::Waits) => waited += 10,
                Err(error) => {
                    self.device.let_image_go(&mut loading).unwrap();
                    assert!(is_the_last(&loading));
                    return Err(error);
                }
            }
        }
    }

    fn give_up(&mut self, vfpga: u8) {
        let window = &mut self.device.windows[usize::from(vfpga)];
        window.engine.abandon("an image is loaded into it");
    }

    /// The engines that answer a command.
    fn living(&mut self) -> Vec<u8> {
        let answers = |window: &mut crate::device::Window| {
            window.engine.query_port().is_ok().then_some(window.index)
        };
        self.device.windows.iter_mut().filter_map(answers).collect()
    }

    fn end(self) {
        drop((self.device, self.card));
        self.runtime.shutdown();
    }
}

#[test]
fn a_loaded_image_is_what_the_card_is_from_then_on_with_its_addresses() {
    let mut rig = Rig::new(4);
    let mut gids = rig.device.gids.clone();
    gids[5] = [7; 16];
    rig.device.set_gids(gids.clone(), vec![0; gids.len()]).unwrap();
    for vfpgas in [1, 3, 4, 2] {
        assert_eq!(rig.load(image(vfpgas), manifest(vfpgas)).unwrap(), u64::from(CHUNKS));
        assert_eq!(rig.device.windows.len(), usize::from(vfpgas));
        assert_eq!(rig.device.gids, gids);
        assert!(rig.device.interrupts.is_some());
        rig.device.check_image().unwrap();
        rig.device.manifest.regions = Some(9);
        let why = rig.device.check_image().unwrap_err().to_string();
        assert!(why.contains("it has ") && why.contains("and test has others"), "{why}");
        rig.device.manifest.regions = Some(vfpgas);
    }
    rig.end();
}

#[test]
fn an_image_of_another_engine_makes_a_card_that_balboad_hosts_one_for_and_back() {
    let mut rig = Rig::new(4);
    let mut gids = rig.device.gids.clone();
    gids[5] = [7; 16];
    rig.device.set_gids(gids.clone(), vec![0; gids.len()]).unwrap();
    let stock = |vfpgas: u8| {
        let image = SoftImage::new(vec![Logic::Stock; vfpgas.into()]).unwrap();
        let is = Manifest { engine: EngineKind::Stock, ..manifest(vfpgas) };
        (image.filled_to(1000).unwrap().to_bytes().into(), is)
    };
    for vfpgas in [2, 3] {
        // As published, twice: the engine that is hosted for it goes with the image of before.
        for _ in 0..2 {
            let (image, is) = stock(vfpgas);
            assert_eq!(rig.load(image, is).unwrap(), u64::from(CHUNKS));
            assert_eq!(rig.device.windows.len(), usize::from(vfpgas));
            assert_eq!(rig.device.gids, gids);
            assert!(rig.device.is_hosted());
            rig.device.check_image().unwrap();
        }
        rig.load(image(1), manifest(1)).unwrap();
        assert!(!rig.device.is_hosted() && rig.device.windows.len() == 1);
        assert_eq!(rig.device.gids, gids);
        rig.device.check_image().unwrap();
    }
    // The loaded image is not the announced one.
    let (bytes, is) = stock(2);
    let (_, error) = rig.load(image(2), is).unwrap_err();
    assert!(error.to_string().contains("its shell has no AVX registers"), "{error}");
    assert!(rig.device.is_dead() && !rig.device.is_hosted());
    let (_, error) = rig.load(bytes, manifest(2)).unwrap_err();
    assert!(error.to_string().contains("none of its 2 vFPGAs holds"), "{error}");
    rig.load(image(2), manifest(2)).unwrap();
    rig.end();
}

#[test]
fn a_card_that_came_without_an_image_gets_one() {
    let mut rig = Rig::new(0);
    assert!(rig.device.is_dead());
    assert!(rig.device.check_image().unwrap_err().to_string().contains("holds no image"));
    rig.load(image(2), manifest(2)).unwrap();
    assert_eq!((rig.device.windows.len(), rig.device.gids.len()), (2, 16));
    rig.end();
}

#[test]
fn whatever_goes_wrong_at_whichever_chunk_is_told_and_the_next_image_mends_it() {
    for chunk in (0..CHUNKS).step_by(share()) {
        for (how, why) in [
            (Spoil::PowerLost, "began anew"),
            (Spoil::WrongBit, "its shell reads all ones"),
            (Spoil::Stall, "did not take a chunk within"),
            (Spoil::NoEnd, "did not come to the end within"),
        ] {
            let mut rig = Rig::new(3);
            rig.card.spoil_reconfiguration(chunk, how);
            let (taken, error) = rig.load(image(2), manifest(2)).unwrap_err();
            let error = error.to_string();
            // A card whose power went between two chunks that it is given takes the rest for a file of its own, which is
            // no image, or has nothing to take.
            let says = match how {
                Spoil::PowerLost => {
                    &[why, "its shell reads all ones", "did not take a chunk within"][..]
                }
                _ => &[why],
            };
            assert!(says.iter().any(|it| error.contains(it)), "{how:?} at {chunk}: {error}");
            let seen = if how == Spoil::Stall { chunk } else { CHUNKS };
            let is_right = how == Spoil::PowerLost || taken == u64::from(seen);
            assert!(is_right, "{how:?} at {chunk}: {taken} were taken");
            assert!(rig.device.is_dead() && rig.device.check_image().is_err());
            rig.load(image(1), manifest(1)).unwrap();
            assert_eq!(rig.device.windows.len(), 1);
            rig.end();
        }
    }
}

/// The image of one vFPGA alone.
fn one(vfpga: u8) -> Arc<Vec<u8>> {
    let image = SoftImage::of_one(vfpga, Logic::Vqe).unwrap();
    image.filled_to(1000).unwrap().to_bytes().into()
}

#[test]
fn one_vfpga_is_loaded_while_the_engines_of_the_others_go_on() {
    let mut rig = Rig::new(4);
    for vfpga in [0, 2, 3] {
        rig.load_one(vfpga, one(vfpga)).unwrap();
        assert_eq!(rig.living(), [0, 1, 2, 3], "vFPGA {vfpga}");
        rig.device.check_image().unwrap();
    }
    assert_eq!(rig.device.arena.lost_bytes(), 0, "the buffers' addresses came back");
    // Nothing was given: it is started anew with its own image.
    rig.give_up(1);
    assert_eq!(rig.living(), [0, 2, 3]);
    let mut loading = rig.device.begin_loading_one(1, one(1), pace()).unwrap();
    rig.device.let_image_go(&mut loading).unwrap();
    drop(loading);
    assert_eq!(rig.living(), [0, 1, 2, 3]);
    // One whose engine runs, and one that is not there.
    for vfpga in [1, 7] {
        assert!(rig.device.begin_loading_one(vfpga, one(1), pace()).is_err());
    }
    assert_eq!(rig.living(), [0, 1, 2, 3]);
    rig.load(image(4), manifest(4)).unwrap();
    rig.end();
}

#[test]
fn whatever_goes_wrong_with_one_vfpga_the_others_go_on_unless_the_card_loses_its_power() {
    for chunk in (0..CHUNKS).step_by(share()) {
        for how in [Spoil::PowerLost, Spoil::WrongBit, Spoil::Stall, Spoil::NoEnd] {
            let at = format!("{how:?} at {chunk}");
            let mut rig = Rig::new(3);
            rig.card.spoil_reconfiguration(chunk, how);
            rig.load_one(1, one(1)).unwrap_err();
            let lost = how == Spoil::PowerLost;
            assert_eq!(rig.device.has_lost_image(), lost, "{at}");
            if lost {
                assert!(rig.device.check_image().is_err(), "{at}");
            } else {
                assert_eq!(rig.living(), [0, 2], "{at}");
            }
            // Behind a standstill its engine goes on with a reset only, and then with a whole image.
            if how == Spoil::WrongBit {
                rig.load_one(1, one(1)).unwrap();
                assert_eq!(rig.living(), [0, 1, 2], "{at}");
            }
            rig.load(image(2), manifest(2)).unwrap();
            assert_eq!(rig.living(), [0, 1], "{at}");
            rig.end();
        }
    }
}

#[test]
fn a_vfpga_is_left_on_the_datapath_until_its_engine_is_at_rest() {
    let card = Arc::new(FakeCard::new(2));
    card.set(Bar::Shell, shell::PR_CNFG, PrCnfg { enabled: true }.encode());
    let backend = Arc::<FakeCard>::clone(&card);
    let mut device = bring_up(0, backend, PortAddress::default_of(0), &manifest(2)).unwrap();
    device.windows[1].engine.abandon("an image is loaded into it");
    let status = user_csr(1) + window::STATUS;
    let taken_off = || {
        let register = shell::DATAPATH_SET.at(Map::default());
        card.take_writes().iter().any(|(offset, _)| *offset == register)
    };
    card.set(Bar::Shell, status, window::STATUS_ENABLED);
    let begun = device.begin_loading_one(1, one(1), pace());
    let why = begun.map(drop).unwrap_err().to_string();
    assert!(why.contains("does not reset"), "{why}");
    assert!(!taken_off());
    card.set(Bar::Shell, status, 0);
    device.begin_loading_one(1, one(1), pace()).unwrap();
    assert!(taken_off());
}

/// For any value of the byte that names the vFPGA, or the number of vFPGAs.
///
/// The card takes a file of the whole card as such, and one of a vFPGA that is on the datapath costs it its image.
#[test]
fn an_image_whose_scope_is_another_than_was_said_is_no_success() {
    let at = 48;
    assert_eq!((one(1)[at], image(3)[at]), (0x81, 3), "where the scope stands");
    for scope in [0, 1, 4, 0x7f, 0x80, 0x82, 0x8e, 0xff] {
        let mut rig = Rig::new(3);
        let mut bytes = one(1).to_vec();
        bytes[at] = scope;
        rig.load_one(1, bytes.into()).unwrap_err();
        assert!(rig.device.has_lost_image(), "{scope:#x}");
        assert!(rig.device.check_image().is_err(), "{scope:#x}");
        rig.load(image(2), manifest(2)).unwrap();
        // The other way round the whole card is lost, and reported so.
        let mut bytes = image(2).to_vec();
        bytes[at] = scope;
        rig.load(bytes.into(), manifest(2)).unwrap_err();
        assert!(rig.device.is_dead() && rig.device.check_image().is_err(), "{scope:#x}");
        rig.load(image(2), manifest(2)).unwrap();
        rig.end();
    }
    // Another number with the right digest is loaded into a vFPGA that is still on the datapath.
    let mut rig = Rig::new(3);
    rig.load_one(1, one(2)).unwrap_err();
    assert!(rig.device.has_lost_image());
    rig.end();
}

#[test]
fn a_card_whose_engines_are_hosted_takes_whole_images_alone() {
    let mut rig = Rig::new(2);
    let stock = SoftImage::new(vec![Logic::Stock; 2]).unwrap().filled_to(1000).unwrap().to_bytes();
    let is = Manifest { engine: EngineKind::Stock, ..manifest(2) };
    rig.load(stock.into(), is).unwrap();
    let why = rig.load_one(1, one(1)).unwrap_err().to_string();
    assert!(why.contains("one stack in common"), "{why}");
    rig.end();
}

#[test]
fn an_image_that_is_another_than_was_said_is_no_success() {
    let mut rig = Rig::new(3);
    let (_, error) = rig.load(image(2), manifest(3)).unwrap_err();
    assert!(error.to_string().contains("its shell has 2 vFPGAs"), "{error}");
    assert!(rig.device.is_dead());
    rig.end();
}

#[test]
fn a_card_that_was_given_nothing_has_its_image_still() {
    let mut rig = Rig::new(3);
    let loading = rig.device.begin_loading(image(2), pace()).unwrap();
    assert!(!loading.has_begun() && rig.device.is_dead());
    rig.device.keep_image(|_| {}).unwrap();
    assert_eq!(rig.device.windows.len(), 3);
    drop(loading);
    for (bytes, chunk) in [(0, 100), (100, 0), (100, 3 << 20)] {
        let pace = Pace { chunk, ..pace() };
        assert!(rig.device.begin_loading(vec![0; bytes].into(), pace).is_err());
        assert_eq!(rig.device.windows.len(), 3);
    }
    rig.end();
}

#[test]
fn a_host_that_is_short_of_memory_costs_no_image() {
    for room in 0..3 {
        let card = Arc::new(FakeCard::new(2));
        let backend = Arc::<FakeCard>::clone(&card);
        let mut device = bring_up(0, backend, PortAddress::default_of(0), &manifest(2)).unwrap();
        let mut loading = device.begin_loading(image(2), pace()).unwrap();
        card.fail_after(Some(room));
        let steps = (0..room).all(|_| loading.step(Instant::now()).unwrap() == LoadingStep::Moved);
        assert!(steps && loading.step(Instant::now()).is_err() && !loading.has_begun());
        assert_eq!(card.written(Bar::Static, s::PR_DCPL_SET), 0, "it is decoupled");
        assert_eq!(card.written(Bar::Static, s::PR_LEN), 0, "it was given something");
        card.fail_after(None);
        device.keep_image(|_| {}).unwrap();
        assert_eq!(device.windows.len(), 2);
    }
}

/// Loads an image of a card, or of one vFPGA of it, into a card that leaves the bus behind so many accesses; whether it was
/// there still at the end.
fn leaves_behind(accesses: u32, alone: Option<u8>) -> bool {
    let card = Arc::new(FakeCard::new(2));
    card.set(Bar::Shell, shell::PR_CNFG, PrCnfg { enabled: true }.encode());
    let backend = Arc::<FakeCard>::clone(&card);
    let mut device = bring_up(0, backend, PortAddress::default_of(0), &manifest(2)).unwrap();
    if let Some(vfpga) = alone {
        device.windows[usize::from(vfpga)].engine.abandon("an image is loaded into it");
    }
    card.leave_after(Some(accesses));
    let outcome = match alone {
        None => take(&mut device, &card),
        Some(vfpga) => take_one(&mut device, vfpga),
    };
    match outcome {
        Ok(()) => assert!(!card.has_left(), "no word of a card that left behind {accesses}"),
        Err(error) => {
            let why = error.to_string();
            assert!(card.has_left(), "{why}");
            assert!(why.contains("the card is gone"), "behind {accesses}: {why}");
        }
    }
    !card.has_left()
}

/// A pace of few chunks: the steps between them are alike.
fn halves() -> Pace {
    Pace { chunk: 500, ..pace() }
}

fn take(device: &mut Device, card: &FakeCard) -> Result<(), Error> {
    let mut loading = device.begin_loading(image(2), halves())?;
    while loading.step(Instant::now())? != LoadingStep::Ended {}
    // It stays once it is up, lest the thread of its interrupts sees it leave.
    device.finish_loading(&loading, manifest(2), |_| card.leave_after(None)).map(drop)
}

fn take_one(device: &mut Device, vfpga: u8) -> Result<(), Error> {
    let mut loading = device.begin_loading_one(vfpga, one(vfpga), halves())?;
    loop {
        match loading.step(Instant::now()) {
            Ok(LoadingStep::Ended) => return device.finish_loading_one(&mut loading),
            Ok(_) => {}
            Err(error) => {
                let let_go = device.let_image_go(&mut loading);
                let of_it = |other: &Error| other.to_string().contains("the card is gone");
                assert!(let_go.as_ref().err().is_none_or(of_it), "{let_go:?}");
                return Err(error);
            }
        }
    }
}

#[test]
fn a_card_that_goes_between_any_two_accesses_while_it_takes_an_image_is_said_to_be_gone() {
    for alone in [None, Some(1)] {
        let mut accesses = 0;
        while !leaves_behind(accesses, alone) {
            accesses += 1;
        }
        // Both chunks at least, each by four registers.
        assert!(accesses > 8, "{alone:?}: there were {accesses}");
    }
}

#[test]
fn an_engine_that_fetches_still_is_reset_before_its_buffers_go() {
    let card = Arc::new(FakeCard::new(2));
    let backend = Arc::<FakeCard>::clone(&card);
    let mut device = bring_up(0, backend, PortAddress::default_of(0), &manifest(2)).unwrap();
    for (asked, is_reset) in [(0, false), (3, true)] {
        card.set(Bar::Static, s::HDMA_STAT.at(ASKED), asked);
        card.take_resets();
        device.begin_loading(image(2), pace()).unwrap();
        assert_eq!(card.take_resets() > 0, is_reset);
    }
}

#[test]
fn a_card_wants_an_image_that_holds_none_or_had_another_than_it_is_found_with() {
    let published = Manifest { engine: EngineKind::Stock, ..manifest(2) };
    for (vfpgas, manifest, had_another, wants) in [
        (0, manifest(2), false, true),
        (0, manifest(2), true, true),
        (2, manifest(2), false, false),
        // It has its recorded image: it does not come up for another reason.
        (2, manifest(2), true, false),
        (3, manifest(2), false, false),
        (3, manifest(2), true, true),
        (2, published.clone(), false, false),
        (2, published, true, true),
    ] {
        let rig = Rig::new(vfpgas);
        let wanted = wants_image(0, &*rig.card, &manifest, had_another);
        assert_eq!(wanted, wants, "{vfpgas}, {manifest:?}, {had_another}");
        rig.end();
    }
}

#[test]
fn an_engine_that_is_hosted_ends_with_its_card_though_its_thread_is_busy() {
    let mut rig = Rig::new(2);
    let stock = SoftImage::new(vec![Logic::Stock; 2]).unwrap().filled_to(1000).unwrap().to_bytes();
    let is = Manifest { engine: EngineKind::Stock, ..manifest(2) };
    // By new engines of the same image, and by an image: as the thread has the shell while the card forgets pages.
    let acts: [fn(&mut Rig); 2] =
        [|rig| rig.device.bring_up_anew().unwrap(), |rig| rig.device.let_engines_go()];
    for act in acts {
        rig.load(stock.clone().into(), is.clone()).unwrap();
        let busy = Arc::clone(&rig.device.shell);
        let granted = rig.device.backend.grant_page(0, 1).unwrap();
        let DoorbellGrant::Page { wake, .. } = granted else { panic!("a page of memory") };
        let page = SharedMapping::new(wake.thread_page.as_fd(), 0, PAGE_BYTES, Access::ReadOnly);
        let life = Lifeline::new(Arc::new(page.unwrap()), wake.liveness as usize).unwrap();
        assert!(!life.is_dead());
        act(&mut rig);
        assert!(life.is_dead());
        drop(busy);
    }
    rig.end();
}
